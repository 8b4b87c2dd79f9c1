"""Shows reports: tables, texts and the HTML page with its figures."""
