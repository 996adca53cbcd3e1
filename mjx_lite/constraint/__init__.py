"""Constraint rows: their Jacobian as an operator, their regularisation, their reference acceleration.

Where the friction cone is:

* `constraint/contact.py`: rows of a contact, with friction coefficients `mu` and relative regularisation `scale` of each row.
* `constraint/assemble.py`: regularisation `r` of all rows, which is `scale` times that of a contact's first row.
* `solver/cost.py`: zones of an elliptic cone (free, quadratic, middle), with the force and curvature of each zone.
* `solver/dual.py`: bounds of the row forces (`low`, `high`) and, for an elliptic contact, the set of forces with radius `mu`.
"""
