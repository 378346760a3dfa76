//! The files: `audit.log` is the newest, `audit.log.1` the one before it, and so on.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::AuditLine;

/// Limits of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditFileLimits {
    /// Bytes of one file.
    pub max_size: u64,
    /// Number of files.
    pub max_files: u32,
}

impl Default for AuditFileLimits {
    fn default() -> Self {
        Self { max_size: 10 << 20, max_files: 5 }
    }
}

/// Path of the file that was rotated so often.
fn file_path(dir: &Path, age: u32) -> PathBuf {
    match age {
        0 => dir.join("audit.log"),
        age => dir.join(format!("audit.log.{age}")),
    }
}

/// Ignores that there is none.
fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// The open newest file.
#[derive(Debug)]
struct NewestFile {
    file: File,
    length: u64,
}

/// Writes the files of one directory.
#[derive(Debug)]
pub(crate) struct AuditFiles {
    dir: PathBuf,
    limits: AuditFileLimits,
    newest: Option<NewestFile>,
}

impl AuditFiles {
    pub(crate) fn new(dir: PathBuf, limits: AuditFileLimits) -> Self {
        Self { dir, limits, newest: None }
    }

    /// Appends whole lines. After an error none of them is in a file.
    pub(crate) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let size = lines.len() as u64;
        let newest = self.newest.as_ref();
        if newest.is_some_and(|newest| newest.length > 0 && newest.length + size > self.limits.max_size) {
            self.rotate()?;
        }
        if self.newest.is_none() {
            self.newest = Some(self.open()?);
        }
        let newest = self.newest.as_mut().expect("it was opened");
        if let Err(error) = newest.file.write_all(lines) {
            // A part of them must not stay, since they are written again.
            let length = newest.length;
            if newest.file.set_len(length).is_err() {
                self.newest = None;
            }
            return Err(error);
        }
        newest.length += size;
        Ok(())
    }

    /// Makes what was appended durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.newest.as_ref().map_or(Ok(()), |newest| newest.file.sync_data())
    }

    fn open(&self) -> io::Result<NewestFile> {
        // Parents are not created: if they are missing, the disk with the data is not mounted.
        match DirBuilder::new().mode(0o700).create(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let path = file_path(&self.dir, 0);
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        let mut length = file.metadata()?.len();
        let mut last = [b'\n'];
        if length > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        // The last line was cut off by a power cut; the next one must not continue it.
        if last != *b"\n" {
            file.write_all(b"\n")?;
            length += 1;
        }
        Ok(NewestFile { file, length })
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.sync()?;
        let oldest = self.limits.max_files.saturating_sub(1);
        found(std::fs::remove_file(file_path(&self.dir, oldest)))?;
        for age in (0..oldest).rev() {
            found(std::fs::rename(file_path(&self.dir, age), file_path(&self.dir, age + 1)))?;
        }
        self.newest = None;
        Ok(())
    }

    /// Opens all files, the oldest first. They stay readable when they are rotated.
    pub(crate) fn open_all(&self) -> io::Result<Vec<File>> {
        let ages = (0..self.limits.max_files).rev();
        let opened = ages.map(|age| found(File::open(file_path(&self.dir, age))));
        opened.filter_map(Result::transpose).collect()
    }

    /// The number of the newest line; 0 without one.
    pub(crate) fn last_number(&self) -> io::Result<u64> {
        let mut last = 0;
        for file in self.open_all()? {
            for line in read_lines(file) {
                last = line?.map_or(last, |line| last.max(line.number));
            }
        }
        Ok(last)
    }
}

/// The lines of a file, or why one cannot be read. A last line without its end is still being written.
pub(crate) fn read_lines(file: File) -> impl Iterator<Item = io::Result<Result<AuditLine, String>>> {
    let mut input = BufReader::new(file);
    std::iter::from_fn(move || {
        loop {
            let mut text = Vec::new();
            match input.read_until(b'\n', &mut text) {
                Err(error) => return Some(Err(error)),
                Ok(_) if text.last() != Some(&b'\n') => return None,
                Ok(1) => {}
                Ok(_) => return Some(Ok(AuditLine::parse(&text))),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn text(number: u64) -> Vec<u8> {
        let mut text = Vec::new();
        AuditLine { version: 1, number, manager: "m1".into(), ..AuditLine::default() }.encode(&mut text);
        text
    }

    fn numbers(files: &AuditFiles) -> Vec<u64> {
        let files = files.open_all().unwrap().into_iter();
        files.flat_map(read_lines).filter_map(|line| Some(line.unwrap().ok()?.number)).collect()
    }

    #[test]
    fn nothing_is_created_without_the_parent_directory() {
        let dir = tempfile::tempdir().unwrap();
        let parent = dir.path().join("manager");
        let mut files = AuditFiles::new(parent.join("audit"), AuditFileLimits::default());
        assert_eq!(files.append(&text(1)).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!parent.exists());
        std::fs::create_dir(parent).unwrap();
        files.append(&text(1)).unwrap();
        assert_eq!(numbers(&files), [1]);
    }

    #[test]
    fn files_are_rotated_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("audit");
        let limits = AuditFileLimits { max_size: 2 * text(100).len() as u64, max_files: 3 };
        let mut files = AuditFiles::new(dir.clone(), limits);
        for number in 100..111 {
            files.append(&text(number)).unwrap();
        }
        assert_eq!(numbers(&files), [106, 107, 108, 109, 110]);
        assert_eq!(files.last_number().unwrap(), 110);
        let mut names: Vec<_> = std::fs::read_dir(&dir).unwrap().map(Result::unwrap).collect();
        names.sort_by_key(std::fs::DirEntry::file_name);
        let shown: Vec<_> = names
            .iter()
            .map(|entry| {
                let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
                (entry.file_name().into_string().unwrap(), mode)
            })
            .collect();
        let expected = ["audit.log", "audit.log.1", "audit.log.2"].map(|name| (name.to_owned(), 0o600));
        assert_eq!(shown, expected);
    }

    #[test]
    fn line_after_torn_one_is_readable() {
        let dir = tempfile::tempdir().unwrap();
        let write = |lines: &[u8]| {
            let mut files = AuditFiles::new(dir.path().into(), AuditFileLimits::default());
            files.append(lines).unwrap();
            files
        };
        write(&text(1));
        write(&text(2)[..20]);
        assert_eq!(numbers(&write(&text(3))), [1, 3]);
    }
}
