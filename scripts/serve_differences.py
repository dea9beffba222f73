"""Write docs/serve-differences.md: published launch commands compared with ours. A test checks the file."""

from pathlib import Path

from halfbyte.serve.launch_data import publications
from halfbyte.serve.published import differences_page, recommended

PAGE = Path(__file__).parents[1] / "docs" / "serve-differences.md"

if __name__ == "__main__":
    PAGE.write_text(differences_page({name: (row, recommended(row)) for name, row in publications().items()}))
