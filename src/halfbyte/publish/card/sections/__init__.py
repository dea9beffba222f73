"""Card sections: one module each, returning the values that its template in ../templates renders."""
