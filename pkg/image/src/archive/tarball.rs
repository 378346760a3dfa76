//! The index of a tar file: safe names and the positions of their bytes. Reads headers only.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek};

use tar::EntryType;

use crate::error::Error;

const MAX_ENTRIES: usize = 100_000;
const MAX_NAME: u64 = 4096;
const MAX_EXTENSION: u64 = 1 << 20;
const MAX_LINKS: usize = 8;

/// Position of an entry's bytes in the tar file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub offset: u64,
    pub size: u64,
}

#[derive(Debug)]
enum EntryTarget {
    File(Span),
    Link(String),
}

/// Names of regular files, and links between them, resolved within the archive only.
#[derive(Debug, Default)]
pub(super) struct TarIndex {
    entries: BTreeMap<String, EntryTarget>,
}

/// Why the index could not be built.
pub(super) enum TarIndexError {
    /// The bytes are not a tar file.
    Io(std::io::Error),
    /// The tar file has an invalid entry.
    Entry(Error),
}

impl From<std::io::Error> for TarIndexError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Error> for TarIndexError {
    fn from(error: Error) -> Self {
        Self::Entry(error)
    }
}

/// Data of an extension entry for the entry that follows it.
#[derive(Default)]
struct PendingExtension {
    name: Option<String>,
    link: Option<String>,
}

impl TarIndex {
    /// Reads the headers. Extension entries are read here rather than by the tar crate, which would read
    /// them whole without a size limit.
    pub fn read(file: &File) -> Result<Self, TarIndexError> {
        let length = file.metadata()?.len();
        let mut file = file;
        file.rewind()?;
        let mut archive = tar::Archive::new(file);
        let mut index = Self::default();
        let mut ahead = PendingExtension::default();
        for (count, entry) in archive.entries_with_seek()?.raw(true).enumerate() {
            let mut entry = entry?;
            if count >= MAX_ENTRIES {
                let reason = format!("the archive has more than {MAX_ENTRIES} entries");
                return Err(Error::entry("", reason).into());
            }
            let kind = entry.header().entry_type();
            match kind {
                EntryType::GNULongName => {
                    ahead.name = Some(parse_text(read_extension(&mut entry, MAX_NAME)?)?)
                }
                EntryType::GNULongLink => {
                    ahead.link = Some(parse_text(read_extension(&mut entry, MAX_NAME)?)?)
                }
                EntryType::XHeader => ahead.read_pax(&read_extension(&mut entry, MAX_EXTENSION)?)?,
                EntryType::XGlobalHeader => {}
                _ => {
                    let PendingExtension { name, link } = std::mem::take(&mut ahead);
                    let name = match name {
                        Some(name) => name,
                        None => parse_text(entry.path_bytes().into_owned())?,
                    };
                    let span = Span { offset: entry.raw_file_position(), size: entry.size() };
                    let link = || match link {
                        Some(link) => Ok(link),
                        None => parse_text(entry.link_name_bytes().unwrap_or_default().into_owned()),
                    };
                    index.insert(&name, kind, span, length, link)?;
                }
            }
        }
        Ok(index)
    }

    fn insert(
        &mut self,
        name: &str,
        kind: EntryType,
        span: Span,
        length: u64,
        link: impl FnOnce() -> Result<String, Error>,
    ) -> Result<(), Error> {
        let Some(clean) = normalize_name(name)? else { return Ok(()) };
        let target = match kind {
            EntryType::Directory => return Ok(()),
            EntryType::Regular | EntryType::Continuous => {
                if span.offset.checked_add(span.size).is_none_or(|end| end > length) {
                    let reason = format!("its size of {} bytes exceeds the archive", span.size);
                    return Err(Error::entry(name, reason));
                }
                EntryTarget::File(span)
            }
            EntryType::Link => EntryTarget::Link(normalize_link(name, "", &link()?)?),
            EntryType::Symlink => {
                let parent = clean.rsplit_once('/').map_or("", |(parent, _)| parent);
                EntryTarget::Link(normalize_link(name, parent, &link()?)?)
            }
            other => return Err(Error::entry(name, format!("entries of type {other:?} are not supported"))),
        };
        match self.entries.insert(clean, target) {
            None => Ok(()),
            Some(_) => Err(Error::entry(name, "it occurs twice")),
        }
    }

    /// The bytes of a file; follows links.
    pub fn get(&self, name: &str) -> Option<Span> {
        let mut name = name;
        for _ in 0..MAX_LINKS {
            match self.entries.get(name)? {
                EntryTarget::File(span) => return Some(*span),
                EntryTarget::Link(next) => name = next,
            }
        }
        None
    }

    /// Number of files and links.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

impl PendingExtension {
    fn read_pax(&mut self, records: &[u8]) -> Result<(), Error> {
        for record in tar::PaxExtensions::new(records) {
            let record =
                record.map_err(|error| Error::entry("", format!("a pax header is malformed: {error}")))?;
            match record.key_bytes() {
                b"path" => self.name = Some(parse_text(record.value_bytes().to_vec())?),
                b"linkpath" => self.link = Some(parse_text(record.value_bytes().to_vec())?),
                b"size" => return Err(Error::entry("", "files over 8 GiB are not supported")),
                _ => {}
            }
        }
        Ok(())
    }
}

fn read_extension(entry: &mut impl Read, limit: u64) -> Result<Vec<u8>, TarIndexError> {
    let mut bytes = Vec::new();
    entry.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(Error::entry("", format!("an extension header is longer than {limit} bytes")).into());
    }
    Ok(bytes)
}

fn parse_text(mut bytes: Vec<u8>) -> Result<String, Error> {
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    String::from_utf8(bytes).map_err(|error| {
        let name = String::from_utf8_lossy(error.as_bytes()).into_owned();
        Error::entry(name, "its name is not UTF-8")
    })
}

/// A relative name without `.` and `..`; `None` for the archive's root itself.
fn normalize_name(name: &str) -> Result<Option<String>, Error> {
    if name.starts_with('/') {
        return Err(Error::entry(name, "its name is absolute"));
    }
    if name.contains('\0') {
        return Err(Error::entry(name, "its name has a NUL character"));
    }
    let parts: Vec<&str> = name.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    match parts.contains(&"..") {
        true => Err(Error::entry(name, "its name points outside the archive")),
        false => Ok(Some(parts.join("/")).filter(|joined| !joined.is_empty())),
    }
}

/// Target of a link in directory `parent`, which must be inside the archive.
fn normalize_link(name: &str, parent: &str, link: &str) -> Result<String, Error> {
    let escapes = || Error::entry(name, format!("it links to {link:?}, outside the archive"));
    if link.starts_with('/') || link.contains('\0') {
        return Err(escapes());
    }
    let mut parts: Vec<&str> = parent.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop().ok_or_else(escapes)?),
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}
