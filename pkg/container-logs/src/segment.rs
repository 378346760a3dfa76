//! The numbered files of an output directory: `0000000001.log`, `0000000002.log`, ... A file is never
//! renamed, and a number is reused only in an emptied directory, so readers can skip removed files.
//!
//! This module is compiled into the logger and the library: it must use only the standard library.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::record::{FILE_HEADER, line_end};

/// Minimum number of digits.
const DIGITS: usize = 10;
const EXTENSION: &str = ".log";
/// Chunk size of backward reads: several records of maximum length.
const BLOCK: u64 = 64 * 1024;
/// Written content without a newline is never this long: it counts as damaged.
const MAX_BLOCK: u64 = 1024 * 1024;

/// Path of the file with this number.
#[must_use]
pub fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:0DIGITS$}{EXTENSION}"))
}

/// The numbers of the files in `dir`, ascending. Other files are ignored.
///
/// # Errors
/// When the directory cannot be read.
pub fn list(dir: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        numbers.extend(entry?.file_name().to_str().and_then(parse_name));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn parse_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(EXTENSION)?;
    let is_number = digits.len() >= DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { digits.parse().ok() } else { None }
}

/// Reads from `offset` until `into` is full or the file ends; returns the number of bytes.
///
/// # Errors
/// When the file cannot be read.
pub fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// End of the last complete line within the first `length` bytes.
///
/// # Errors
/// When the file cannot be read.
pub fn last_line_end(file: &File, length: u64) -> io::Result<u64> {
    let mut end = length;
    let mut block = vec![0; BLOCK as usize];
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        let size = (end - start) as usize;
        let read = read_at(file, &mut block[..size], start)?;
        if let Some(index) = block[..read].iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + index as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Complete records that end at `end`, a record boundary: the offset of the first, and their bytes. `None`
/// at the start of the file.
///
/// # Errors
/// When the file cannot be read, or was truncated.
pub fn records_before(file: &File, end: u64) -> io::Result<Option<(u64, Vec<u8>)>> {
    let first = FILE_HEADER.len() as u64;
    if end <= first {
        return Ok(None);
    }
    let mut size = BLOCK;
    loop {
        let start = end.saturating_sub(size).max(first);
        let mut block = vec![0; (end - start) as usize];
        if read_at(file, &mut block, start)? < block.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if start == first || size >= MAX_BLOCK {
            return Ok(Some((start, block)));
        }
        // Bytes before the first newline belong to a record that starts earlier.
        match line_end(&block) {
            Some(index) if index + 1 < block.len() => {
                block.drain(..=index);
                return Ok(Some((start + index as u64 + 1, block)));
            }
            _ => size *= 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::MAX_TEXT;
    use warren_testkit::scratch::ScratchDir;

    #[test]
    fn names_are_numbers() {
        let scratch = ScratchDir::new();
        for name in
            ["0000000002.log", "0000000010.log", "12345678901.log", "1.log", "0000000003.tmp", "x.log"]
        {
            std::fs::write(scratch.path().join(name), "").unwrap();
        }
        assert_eq!(list(scratch.path()).unwrap(), [2, 10, 12_345_678_901]);
        assert_eq!(segment_path(Path::new("/a"), 12_345_678_901), Path::new("/a/12345678901.log"));
        assert_eq!(segment_path(Path::new("/a"), 7), Path::new("/a/0000000007.log"));
        assert_eq!(list(&scratch.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_torn_end_is_found() {
        let scratch = ScratchDir::new();
        let path = scratch.path().join("file");
        for (content, end) in [(String::new(), 0), ("ab".to_owned(), 0), ("ab\ncd\nef".to_owned(), 6)] {
            std::fs::write(&path, &content).unwrap();
            let file = File::open(&path).unwrap();
            assert_eq!(last_line_end(&file, content.len() as u64).unwrap(), end);
        }
        let long = format!("ab\n{}", "\0".repeat(3 * BLOCK as usize));
        std::fs::write(&path, &long).unwrap();
        assert_eq!(last_line_end(&File::open(&path).unwrap(), long.len() as u64).unwrap(), 3);
    }

    #[test]
    fn backward_read_visits_each_record_once() {
        let scratch = ScratchDir::new();
        let path = scratch.path().join("file");
        let mut content = FILE_HEADER.to_vec();
        for index in 0..40 {
            content.extend(std::iter::repeat_n(b'a' + index % 26, MAX_TEXT - usize::from(index)));
            content.push(b'\n');
        }
        std::fs::write(&path, &content).unwrap();
        let file = File::open(&path).unwrap();
        let mut end = content.len() as u64;
        let mut blocks = Vec::new();
        while let Some((start, block)) = records_before(&file, end).unwrap() {
            assert_eq!(start + block.len() as u64, end);
            assert_eq!(content[start as usize - 1], b'\n');
            blocks.push(block);
            end = start;
        }
        assert!(blocks.len() > 5);
        blocks.reverse();
        assert!(blocks.concat() == content[FILE_HEADER.len()..]);
    }

    #[test]
    fn block_without_newline_is_returned() {
        let scratch = ScratchDir::new();
        let path = scratch.path().join("file");
        let content = [FILE_HEADER, &vec![0; 3 << 20][..], b"\n"].concat();
        std::fs::write(&path, &content).unwrap();
        let file = File::open(&path).unwrap();
        let (start, block) = records_before(&file, content.len() as u64).unwrap().unwrap();
        assert_eq!((start + block.len() as u64, block.len()), (content.len() as u64, MAX_BLOCK as usize));
    }
}
