//! Positioned reads: the only way bytes enter this crate.

/// Something that bytes can be read from at any place: a file, a slice, a part of either.
pub trait ReadAt: Sync {
    /// Length in bytes, as of when it was opened.
    fn len(&self) -> u64;

    /// Fills `buf` from `offset`, or fails.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), ReadError>;

    /// Where at or behind `offset` the next bytes begin that may be other than zero; none where only zeros follow. A
    /// source that cannot tell returns `offset`.
    fn next_used(&self, offset: u64) -> Option<u64> {
        (offset < self.len()).then_some(offset)
    }

    /// Whether there are no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A read that failed, with the place it was tried at.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {wanted} bytes at offset {offset}")]
pub struct ReadError {
    /// Where the read was tried.
    pub offset: u64,
    /// How many bytes were wanted.
    pub wanted: usize,
    /// What the system said; absent where the bytes simply end.
    #[source]
    pub cause: Option<std::io::Error>,
}

impl ReadAt for [u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), ReadError> {
        let missing = ReadError { offset, wanted: buf.len(), cause: None };
        let Ok(start) = usize::try_from(offset) else { return Err(missing) };
        let Some(bytes) = start.checked_add(buf.len()).and_then(|end| self.get(start..end)) else {
            return Err(missing);
        };
        buf.copy_from_slice(bytes);
        Ok(())
    }
}

impl ReadAt for Vec<u8> {
    fn len(&self) -> u64 {
        ReadAt::len(self.as_slice())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), ReadError> {
        self.as_slice().read_exact_at(buf, offset)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for &T {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), ReadError> {
        (**self).read_exact_at(buf, offset)
    }

    fn next_used(&self, offset: u64) -> Option<u64> {
        (**self).next_used(offset)
    }
}
