"""Seeded damage of files: flipped bits, other bytes and digits, cuts, insertions, removal."""


def flip_bit(content, draw):
    position = draw.randrange(len(content))
    return replaced(content, position, content[position] ^ (1 << draw.randrange(8)))


def change_byte(content, draw):
    return replaced(content, draw.randrange(len(content)), draw.randrange(256))


def change_digit(content, draw):
    """Change one decimal digit, the damage that keeps JSON valid."""
    digits = [n for n, byte in enumerate(content) if 48 <= byte <= 57]
    if not digits:
        return flip_bit(content, draw)
    position = draw.choice(digits)
    return replaced(content, position, 48 + (content[position] - 47) % 10)


def truncate(content, draw):
    return content[: draw.randrange(len(content))]


def remove_span(content, draw):
    first = draw.randrange(len(content))
    return content[:first] + content[first + draw.randint(1, 64) :]


def insert_bytes(content, draw):
    first = draw.randrange(len(content) + 1)
    return content[:first] + draw.randbytes(draw.randint(1, 16)) + content[first:]


def zero_block(content, draw):
    first = draw.randrange(len(content))
    size = min(draw.choice((1, 64, 512)), len(content) - first)
    return content[:first] + bytes(size) + content[first + size :]


def remove_line(content, draw):
    lines = content.split(b"\n")
    del lines[draw.randrange(len(lines))]
    return b"\n".join(lines)


def remove_file(content, draw):
    return None


KINDS = (
    *(flip_bit, change_byte, change_digit, truncate, remove_span),
    *(insert_bytes, zero_block, remove_line, remove_file),
)


def replaced(content, position, byte):
    return content[:position] + bytes([byte]) + content[position + 1 :]


def damage_file(path, draw):
    """Damage a file; return the kind of damage, or None if the content is as it was."""
    content, change = path.read_bytes(), draw.choice(KINDS)
    changed = change(content, draw) if content else b"x"
    if changed == content:
        return None
    if changed is None:
        path.unlink()
    else:
        path.write_bytes(changed)
    return change.__name__
