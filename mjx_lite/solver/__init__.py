"""The constraint solver: minimise 1/2 (a-a_s)'M(a-a_s) + s(Ja - aref) over the acceleration a; differentiate the minimiser."""
