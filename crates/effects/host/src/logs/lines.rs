//! Cuts a stream of bytes into lines of bounded length.
//!
//! **Invariant:** every byte comes out as it went in, except what a line has beyond [`LINE_MAX`], which is named as missing.

/// etcd's own lines are below 4 KiB. A line beyond this is cut, so that a program gone mad costs no memory.
pub const LINE_MAX: usize = 64 << 10;

/// The line that is being gathered.
#[derive(Debug, Default)]
pub struct Lines {
    line: Vec<u8>,
    cut: u64,
}

impl Lines {
    /// Takes the next bytes and hands out each line that they end, with its newline.
    pub fn push(&mut self, mut bytes: &[u8], mut whole: impl FnMut(&[u8])) {
        while let Some(at) = bytes.iter().position(|byte| *byte == b'\n') {
            let (head, rest) = bytes.split_at(at + 1);
            if self.line.is_empty() && self.cut == 0 && head.len() <= LINE_MAX {
                whole(head);
            } else {
                self.keep(&head[..at]);
                self.end(&mut whole);
            }
            bytes = rest;
        }
        self.keep(bytes);
    }

    /// Hands out what was never ended by a newline.
    pub fn finish(&mut self, mut whole: impl FnMut(&[u8])) {
        if !self.line.is_empty() {
            self.end(&mut whole);
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = LINE_MAX - self.line.len();
        let kept = bytes.len().min(room);
        self.line.extend_from_slice(&bytes[..kept]);
        self.cut += (bytes.len() - kept) as u64;
    }

    fn end(&mut self, whole: &mut impl FnMut(&[u8])) {
        if self.cut > 0 {
            self.line.extend_from_slice(format!(" [{} more bytes cut]", self.cut).as_bytes());
        }
        self.line.push(b'\n');
        whole(&self.line);
        self.line.clear();
        self.line.shrink_to(4096);
        self.cut = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let mut all = Vec::new();
        let mut lines = Lines::default();
        for piece in pieces {
            lines.push(piece, |line| all.push(String::from_utf8_lossy(line).into_owned()));
        }
        lines.finish(|line| all.push(String::from_utf8_lossy(line).into_owned()));
        all
    }

    #[test]
    fn lines_come_out_whole_however_they_arrive() {
        assert_eq!(lines(&[b"a\nb", b"", b"c\n\nd"]), ["a\n", "bc\n", "\n", "d\n"]);
    }

    #[test]
    fn an_endless_line_is_cut_and_says_so() {
        let long = vec![b'x'; LINE_MAX + 7];
        let got = lines(&[&long, b"yy\nz\n"]);
        assert_eq!(got[0].len(), LINE_MAX + " [9 more bytes cut]\n".len());
        assert!(got[0].ends_with("xx [9 more bytes cut]\n"));
        assert_eq!(got[1], "z\n");
        let whole = [long.as_slice(), b"\n"].concat();
        assert!(lines(&[&whole])[0].ends_with("[7 more bytes cut]\n"));
    }
}
