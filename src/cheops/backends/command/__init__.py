"""Operations that are commands of this machine."""
