//! Where in the files reading begins: at a time, some lines before the end, or at the end itself.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::error::Error;
use crate::record::{self, HEAD, HEADER, LONGEST_TEXT, Record, VERSION, line_end};
use crate::segment;

/// Where a record begins or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Of the file.
    pub number: u64,
    /// In the file.
    pub offset: u64,
}

/// What there is to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The number before that of the first file.
    pub before: u64,
    /// Where the last whole line ends.
    pub last: Place,
}

/// Looks at what there is now.
pub fn ends(dir: &Path) -> Result<Ends, Error> {
    loop {
        let numbers = match segment::numbers(dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(Error::NotFound { dir: dir.to_owned() });
            }
            found => found.map_err(|source| Error::Read { path: dir.to_owned(), source })?,
        };
        let (Some(first), Some(number)) = (numbers.first(), numbers.last().copied()) else {
            return Ok(Ends { before: 0, last: Place { number: 0, offset: 0 } });
        };
        let end = with_file(dir, number, |file| segment::last_line_end(file, file.metadata()?.len()))?;
        if let Some(offset) = end {
            return Ok(Ends { before: first.saturating_sub(1), last: Place { number, offset } });
        }
        // Rotated away since the files were listed: there is a newer one now, or the directory is gone.
    }
}

/// Where the records from `since` on begin, or a little earlier; `None` is the first record there is.
pub fn of_time(dir: &Path, since: u64) -> Result<Option<Place>, Error> {
    let numbers = segment::numbers(dir).map_err(|source| Error::Read { path: dir.to_owned(), source })?;
    for number in numbers.into_iter().rev() {
        check_version(dir, number)?;
        let offset = with_file(dir, number, |file| {
            let mut first = [0; HEAD];
            segment::read_at(file, &mut first, HEADER.len() as u64)?;
            match record::parse_stamp(&first) {
                Some(at) if at <= since => search(file, since).map(Some),
                // It begins later, or its beginning cannot be read: the place is in an earlier file.
                _ => Ok(None),
            }
        })?;
        match offset {
            Some(Some(offset)) => return Ok(Some(Place { number, offset })),
            Some(None) => {}
            // Rotated away, and so was everything before.
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// The offset of a record before `since` that is near to it, by halving.
fn search(file: &File, since: u64) -> io::Result<u64> {
    // Enough for the rest of one record and the head of the next.
    let mut block = vec![0; LONGEST_TEXT + 2 * HEAD + 1];
    let (mut low, mut high) = (HEADER.len() as u64, file.metadata()?.len());
    while high - low > 2 * block.len() as u64 {
        let middle = low + (high - low) / 2;
        let read = segment::read_at(file, &mut block, middle)?;
        let Some(newline) = line_end(&block[..read]) else { break };
        match record::parse_stamp(&block[newline + 1..read]) {
            Some(at) if at < since => low = middle + newline as u64 + 1,
            Some(_) => high = middle,
            // Damage: reading from `low` on finds the place as well.
            None => break,
        }
    }
    Ok(low)
}

/// Where the last `lines` lines before `end` begin; `None` is the first record there is.
pub fn of_tail(dir: &Path, end: Place, lines: u64) -> Result<Option<Place>, Error> {
    let mut place = end;
    let mut left = lines;
    loop {
        if place.number == 0 {
            return Ok(None);
        }
        check_version(dir, place.number)?;
        let start = with_file(dir, place.number, |file| back(file, place.offset, &mut left))?;
        match start {
            Some(Some(offset)) => return Ok(Some(Place { number: place.number, offset })),
            Some(None) => {}
            None => return Ok(None),
        }
        // The file before it is as long as its last whole line.
        let number = place.number - 1;
        let length = with_file(dir, number, |file| segment::last_line_end(file, file.metadata()?.len()))?;
        let Some(offset) = length else { return Ok(None) };
        place = Place { number, offset };
    }
}

/// Goes back over `left` lines from `end` on, and over the pieces of the first of them; `None` when the file
/// has no more.
fn back(file: &File, mut end: u64, left: &mut u64) -> io::Result<Option<u64>> {
    while let Some((start, block)) = segment::records_before(file, end)? {
        let mut after = block.len();
        while after > 0 {
            let newline = block[..after - 1].iter().rposition(|byte| *byte == b'\n');
            let from = newline.map_or(0, |index| index + 1);
            if let Some(Record::Line { partial: false, .. }) = record::decode(&block[from..after - 1]) {
                if *left == 0 {
                    return Ok(Some(start + after as u64));
                }
                *left -= 1;
            }
            after = from;
        }
        end = start;
    }
    Ok(None)
}

/// Refuses files of newer versions.
fn check_version(dir: &Path, number: u64) -> Result<(), Error> {
    let mut start = [0; 2 * HEADER.len()];
    let read = with_file(dir, number, |file| segment::read_at(file, &mut start, 0))?;
    let first = &start[..read.unwrap_or(0)];
    match line_end(first) {
        Some(end) => ensure_known(&segment::path(dir, number), &first[..end]).map(|_| ()),
        None => Ok(()),
    }
}

/// Refuses a newer version by the first line of its files; tells whether the line names one at all. What
/// names none was left by a power cut.
pub fn ensure_known(file: &Path, first_line: &[u8]) -> Result<bool, Error> {
    match record::version(first_line) {
        Some(found) if found > VERSION => {
            Err(Error::Version { file: file.to_owned(), found, known: VERSION })
        }
        found => Ok(found.is_some()),
    }
}

/// `None` when there is no such file any more.
fn with_file<T>(
    dir: &Path,
    number: u64,
    act: impl FnOnce(&File) -> io::Result<T>,
) -> Result<Option<T>, Error> {
    let path = segment::path(dir, number);
    match File::open(&path).and_then(|file| act(&file)) {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Read { path, source }),
    }
}
