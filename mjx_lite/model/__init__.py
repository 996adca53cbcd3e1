"""Model and Data: fields, types, layout, status, and how they are printed and packed."""
