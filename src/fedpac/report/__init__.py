"""What people look at: tables as text, figures and the page of results."""
