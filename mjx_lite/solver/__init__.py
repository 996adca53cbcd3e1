"""The constraint solver: minimise ½(a-a_s)'M(a-a_s) + s(Ja - aref) over the acceleration a, and differentiate it."""
