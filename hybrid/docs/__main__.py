"""`python -m hybrid.docs`: write the generated pages anew."""

from pathlib import Path

from hybrid.docs.generate import pages

for path, text in pages().items():
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    print(path)
