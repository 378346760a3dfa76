//! Splits a stream into lines of bounded length. An incomplete line is held until its newline, the end or a flush.

use crate::record::{MAX_TEXT, line_end};

/// The pending part of an incomplete line; at most the length of a record.
#[derive(Debug, Default)]
pub struct LineSplitter {
    pending: Vec<u8>,
}

impl LineSplitter {
    /// Consumes the next bytes of the stream and emits complete texts, with a flag that the line continues.
    pub fn feed(&mut self, mut bytes: &[u8], mut emit: impl FnMut(&[u8], bool)) {
        while let Some(end) = line_end(bytes) {
            self.take(&bytes[..end], true, &mut emit);
            bytes = &bytes[end + 1..];
        }
        self.take(bytes, false, &mut emit);
    }

    /// Whether there is the beginning of a line that was not emitted.
    pub fn has_incomplete_line(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Emits the beginning of an incomplete line, which continues.
    pub fn flush(&mut self, mut emit: impl FnMut(&[u8], bool)) {
        if !self.pending.is_empty() {
            emit(&self.pending, true);
            self.pending.clear();
        }
    }

    /// Ends the stream: emits a last line without a newline.
    pub fn finish(&mut self, mut emit: impl FnMut(&[u8], bool)) {
        if !self.pending.is_empty() {
            emit(&self.pending, false);
            self.pending.clear();
        }
    }

    fn take(&mut self, mut text: &[u8], is_end: bool, emit: &mut impl FnMut(&[u8], bool)) {
        while self.pending.len() + text.len() > MAX_TEXT {
            let (now, rest) = text.split_at(MAX_TEXT - self.pending.len());
            self.emit(now, true, emit);
            text = rest;
        }
        if is_end {
            self.emit(text, false, emit);
        } else {
            self.pending.extend_from_slice(text);
        }
    }

    /// Emits pending data and `text` as one.
    fn emit(&mut self, text: &[u8], partial: bool, emit: &mut impl FnMut(&[u8], bool)) {
        if self.pending.is_empty() {
            emit(text, partial);
        } else {
            self.pending.extend_from_slice(text);
            emit(&self.pending, partial);
            self.pending.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(chunks: &[&[u8]]) -> Vec<(Vec<u8>, bool)> {
        let (mut splitter, mut lines) = (LineSplitter::default(), Vec::new());
        for chunk in chunks {
            splitter.feed(chunk, |text, partial| lines.push((text.to_vec(), partial)));
        }
        splitter.finish(|text, partial| lines.push((text.to_vec(), partial)));
        splitter.finish(|_, _| panic!("a stream ends once"));
        lines
    }

    #[test]
    fn lines_are_split_wherever_chunks_end() {
        let whole: &[&[u8]] = &[b"one\n\ntwo\nthree"];
        let pieces: &[&[u8]] = &[b"o", b"ne", b"\n", b"\ntwo\nth", b"", b"ree"];
        let expected = [&b"one"[..], b"", b"two", b"three"].map(|text| (text.to_vec(), false));
        assert_eq!(split(whole), expected);
        assert_eq!(split(pieces), expected);
        assert_eq!(split(&[b"", b""]), []);
    }

    #[test]
    fn flushed_line_continues() {
        let (mut splitter, mut lines) = (LineSplitter::default(), Vec::new());
        let mut emit = |text: &[u8], partial: bool| lines.push((text.to_vec(), partial));
        splitter.flush(&mut emit);
        splitter.feed(b"one\nname: ", &mut emit);
        assert!(splitter.has_incomplete_line());
        splitter.flush(&mut emit);
        assert!(!splitter.has_incomplete_line());
        splitter.feed(b"x\n", &mut emit);
        splitter.finish(&mut emit);
        let expected = [("one", false), ("name: ", true), ("x", false)];
        assert_eq!(lines, expected.map(|(text, partial)| (text.as_bytes().to_vec(), partial)));
    }

    #[test]
    fn only_too_long_lines_are_split() {
        let fits = vec![b'x'; MAX_TEXT];
        assert_eq!(split(&[&fits, b"\n"]), [(fits.clone(), false)]);
        assert_eq!(split(&[&fits]), [(fits.clone(), false)]);
        assert_eq!(split(&[&fits, b"y\n"]), [(fits.clone(), true), (b"y".to_vec(), false)]);
        let twice = [&fits[..], &fits[..], b"\n"].concat();
        assert_eq!(split(&[&twice]), [(fits.clone(), true), (fits.clone(), false)]);
        assert_eq!(split(&[b"z", &fits]), [([b"z", &fits[1..]].concat(), true), (b"x".to_vec(), false)]);
    }

    proptest! {
        #[test]
        fn no_byte_is_lost_and_pieces_are_bounded(
            lines in proptest::collection::vec((b'\n' + 1..=u8::MAX, 0..3 * MAX_TEXT), 0..8),
            cuts in proptest::collection::vec(1..2 * MAX_TEXT, 1..40),
        ) {
            let written: Vec<Vec<u8>> = lines.iter().map(|(byte, length)| vec![*byte; *length]).collect();
            let stream: Vec<u8> = written.iter().flat_map(|line| [&line[..], b"\n"].concat()).collect();
            let (mut chunks, mut rest) = (Vec::new(), &stream[..]);
            for cut in cuts.iter().cycle() {
                let (chunk, after) = rest.split_at((*cut).min(rest.len()));
                chunks.push(chunk);
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            let mut joined = vec![Vec::new()];
            for (text, partial) in split(&chunks) {
                prop_assert!(text.len() <= MAX_TEXT && (!partial || text.len() == MAX_TEXT));
                joined.last_mut().unwrap().extend(text);
                if !partial {
                    joined.push(Vec::new());
                }
            }
            prop_assert_eq!(joined.pop(), Some(Vec::new()));
            prop_assert!(joined == written);
        }
    }
}
