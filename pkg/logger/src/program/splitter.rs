//! From pieces of a stream to lines of bounded length. What has no newline yet waits for it, or for the end.

use crate::record::{LONGEST_TEXT, line_end};

/// What came of a line whose end has not come yet; never more than a record can hold.
#[derive(Debug, Default)]
pub struct Splitter {
    held: Vec<u8>,
}

impl Splitter {
    /// Takes the next bytes of the stream and hands out what is complete: a text, and whether its line goes
    /// on.
    pub fn feed(&mut self, mut bytes: &[u8], mut emit: impl FnMut(&[u8], bool)) {
        while let Some(end) = line_end(bytes) {
            self.take(&bytes[..end], true, &mut emit);
            bytes = &bytes[end + 1..];
        }
        self.take(bytes, false, &mut emit);
    }

    /// The stream has ended: hands out a last line that had no newline.
    pub fn finish(&mut self, mut emit: impl FnMut(&[u8], bool)) {
        if !self.held.is_empty() {
            emit(&self.held, false);
            self.held.clear();
        }
    }

    fn take(&mut self, mut text: &[u8], is_end: bool, emit: &mut impl FnMut(&[u8], bool)) {
        while self.held.len() + text.len() > LONGEST_TEXT {
            let (now, rest) = text.split_at(LONGEST_TEXT - self.held.len());
            self.emit(now, true, emit);
            text = rest;
        }
        if is_end {
            self.emit(text, false, emit);
        } else {
            self.held.extend_from_slice(text);
        }
    }

    /// Hands out what is held and `text` as one.
    fn emit(&mut self, text: &[u8], partial: bool, emit: &mut impl FnMut(&[u8], bool)) {
        if self.held.is_empty() {
            emit(text, partial);
        } else {
            self.held.extend_from_slice(text);
            emit(&self.held, partial);
            self.held.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(chunks: &[&[u8]]) -> Vec<(Vec<u8>, bool)> {
        let (mut splitter, mut found) = (Splitter::default(), Vec::new());
        for chunk in chunks {
            splitter.feed(chunk, |text, partial| found.push((text.to_vec(), partial)));
        }
        splitter.finish(|text, partial| found.push((text.to_vec(), partial)));
        splitter.finish(|_, _| panic!("a stream ends once"));
        found
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
    fn only_a_line_that_is_too_long_comes_in_pieces() {
        let fits = vec![b'x'; LONGEST_TEXT];
        assert_eq!(split(&[&fits, b"\n"]), [(fits.clone(), false)]);
        assert_eq!(split(&[&fits]), [(fits.clone(), false)]);
        assert_eq!(split(&[&fits, b"y\n"]), [(fits.clone(), true), (b"y".to_vec(), false)]);
        let twice = [&fits[..], &fits[..], b"\n"].concat();
        assert_eq!(split(&[&twice]), [(fits.clone(), true), (fits.clone(), false)]);
        assert_eq!(split(&[b"z", &fits]), [([b"z", &fits[1..]].concat(), true), (b"x".to_vec(), false)]);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_no_piece_too_long(
            lines in proptest::collection::vec((b'\n' + 1..=u8::MAX, 0..3 * LONGEST_TEXT), 0..8),
            cuts in proptest::collection::vec(1..2 * LONGEST_TEXT, 1..40),
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
                prop_assert!(text.len() <= LONGEST_TEXT && (!partial || text.len() == LONGEST_TEXT));
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
