"""Constraint rows: their Jacobian as an operator, their regularisation, their reference acceleration."""
