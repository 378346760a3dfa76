//! State snapshots, one plain file each: `snapshot-<term>-<index>`, in hexadecimal.
//!
//! | part    | content                                                                     |
//! |---------|-----------------------------------------------------------------------------|
//! | header  | `WRNSNAP\n`, format version u32, index u64, term u64, members as in the log  |
//! | payload | the state, opaque here                                                      |
//! | footer  | payload length u64, CRC32C u32 of everything before it                      |
//!
//! A file is written under a temporary name, synced, renamed, and its directory synced; a file under its
//! final name is therefore complete. It is recorded in the log ([`crate::LogStore::set_snapshot`]) after
//! that, and older ones are removed last: at every point of a crash the log refers to an existing file.

use std::{
    cmp::Ordering,
    fs::{self, File},
    io::{self, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use crate::{
    Error, Result, SnapshotMeta, codec,
    fsync::{sync_dir, sync_parent},
};

/// The version of this format; files of other versions are rejected.
pub const SNAPSHOT_FORMAT: u32 = 2;

const MAGIC: &[u8; 8] = b"WRNSNAP\n";
const FOOTER_LEN: usize = 12;
const PREFIX: &str = "snapshot-";
const TEMPORARY: &str = ".tmp";

/// The snapshot files of one manager.
#[derive(Debug, Clone)]
pub struct SnapshotDir {
    dir: PathBuf,
}

impl SnapshotDir {
    /// The snapshots in a directory; creates and removes nothing.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Opens or creates the directory, and removes every snapshot file except `current` (from
    /// [`crate::LogStore::load`]), such as leftovers of a crash.
    pub fn open(dir: impl Into<PathBuf>, current: Option<&SnapshotMeta>) -> Result<Self> {
        let snapshots = Self::at(dir);
        let dir = &snapshots.dir;
        fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        sync_parent(dir)?;
        let keep = current.map(|meta| file_name(meta.index, meta.term));
        snapshots.remove_where(|name| Some(name) != keep.as_deref())?;
        Ok(snapshots)
    }

    /// Path of the snapshot file, existing or not.
    pub fn path(&self, meta: &SnapshotMeta) -> PathBuf {
        self.dir.join(file_name(meta.index, meta.term))
    }

    /// Writes a snapshot; `payload` writes the state. When this returns, the file is durable. Replaces an
    /// existing file of the same name.
    pub fn write(
        &self,
        meta: &SnapshotMeta,
        payload: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<PathBuf> {
        let path = self.path(meta);
        let temporary = self.dir.join(file_name(meta.index, meta.term) + TEMPORARY);
        write_file(&temporary, meta, payload).map_err(Error::io("write", &temporary))?;
        fs::rename(&temporary, &path).map_err(Error::io("rename", &temporary))?;
        sync_dir(&self.dir)?;
        Ok(path)
    }

    /// Reads a snapshot's payload and verifies all of the file.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is damaged or is not the snapshot that `meta` describes,
    /// [`Error::Newer`] and [`Error::Older`] if another version wrote it.
    pub fn load(&self, meta: &SnapshotMeta) -> Result<Vec<u8>> {
        let (found, payload) = self.load_at(meta.index, meta.term)?;
        if found != *meta {
            let what = format!("it has different members: {:?}", found.conf_state);
            return Err(Error::Corrupt { path: self.path(meta), what });
        }
        Ok(payload)
    }

    /// As [`SnapshotDir::load`] by index and term only; also returns the metadata.
    ///
    /// # Errors
    /// As [`SnapshotDir::load`].
    pub fn load_at(&self, index: u64, term: u64) -> Result<(SnapshotMeta, Vec<u8>)> {
        let path = self.dir.join(file_name(index, term));
        let mut content = Vec::new();
        File::open(&path).and_then(|mut file| file.read_to_end(&mut content)).map_err(|error| match error
            .kind()
        {
            io::ErrorKind::NotFound => Error::Corrupt { path: path.clone(), what: "it is missing".into() },
            _ => Error::io("read", &path)(error),
        })?;
        let (found, payload) = parse(&path, &content)?;
        if (found.index, found.term) != (index, term) {
            let what = format!("it is for entry {} of term {}", found.index, found.term);
            return Err(Error::Corrupt { path, what });
        }
        let start = content.len() - FOOTER_LEN - payload;
        content.truncate(start + payload);
        content.drain(..start);
        Ok((found, content))
    }

    /// Removes the files of snapshots older than `keep`, which the log must already refer to.
    pub fn remove_older(&self, keep: &SnapshotMeta) -> Result<()> {
        self.remove_where(|name| parse_name(name).is_some_and(|(_, index)| index < keep.index))
    }

    fn remove_where(&self, unwanted: impl Fn(&str) -> bool) -> Result<()> {
        for file in fs::read_dir(&self.dir).map_err(Error::io("list", &self.dir))? {
            let file = file.map_err(Error::io("list", &self.dir))?;
            let name = file.file_name();
            let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
                continue;
            };
            if unwanted(name) {
                fs::remove_file(file.path()).map_err(Error::io("remove", file.path()))?;
            }
        }
        Ok(())
    }
}

fn file_name(index: u64, term: u64) -> String {
    format!("{PREFIX}{term:016x}-{index:016x}")
}

/// Term and index in the name of a finished snapshot file.
fn parse_name(name: &str) -> Option<(u64, u64)> {
    let (term, index) = name.strip_prefix(PREFIX)?.split_once('-')?;
    Some((u64::from_str_radix(term, 16).ok()?, u64::from_str_radix(index, 16).ok()?))
}

fn write_file(
    path: &Path,
    meta: &SnapshotMeta,
    payload: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let file = PacedWriter { file: File::create(path)?, unsynced: 0 };
    let mut out = ChecksumWriter { file: BufWriter::new(file), crc: 0, length: 0 };
    out.write_all(MAGIC)?;
    out.write_all(&SNAPSHOT_FORMAT.to_le_bytes())?;
    out.write_all(&codec::encode_snapshot(meta))?;
    let header = out.length;
    payload(&mut out)?;
    let length = out.length - header;
    out.write_all(&length.to_le_bytes())?;
    let crc = out.crc;
    out.write_all(&crc.to_le_bytes())?;
    out.file.into_inner().map_err(io::IntoInnerError::into_error)?.file.sync_data()
}

/// Maximum number of unsynced bytes.
const SYNC_STEP: usize = 1 << 20;

/// Syncs written data step by step: syncing a whole snapshot at once would delay every log write behind it.
struct PacedWriter {
    file: File,
    unsynced: usize,
}

impl Write for PacedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.unsynced >= SYNC_STEP {
            self.file.sync_data()?;
            self.unsynced = 0;
        }
        let written = self.file.write(bytes)?;
        self.unsynced += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Counts and checksums what passes through.
struct ChecksumWriter {
    file: BufWriter<PacedWriter>,
    crc: u32,
    length: u64,
}

impl Write for ChecksumWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.crc = crc32c::crc32c_append(self.crc, &bytes[..written]);
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The header and the payload length of a complete file.
fn parse(path: &Path, content: &[u8]) -> Result<(SnapshotMeta, usize)> {
    let corrupt = |what: &str| Error::Corrupt { path: path.into(), what: what.into() };
    let (magic, rest) = content.split_first_chunk().ok_or_else(|| corrupt("truncated"))?;
    if magic != MAGIC {
        return Err(corrupt("wrong magic"));
    }
    let mut fields = codec::FieldDecoder(rest);
    // The version comes before the checksum: a later version may use another checksum.
    let found = fields.u32().ok_or_else(|| corrupt("truncated"))?;
    let (path, supported) = (path.to_owned(), SNAPSHOT_FORMAT);
    match found.cmp(&supported) {
        Ordering::Less => return Err(Error::Older { path, found, supported }),
        Ordering::Equal => {}
        Ordering::Greater => return Err(Error::Newer { path, found, supported }),
    }
    let (summed, crc) = content.split_last_chunk().ok_or_else(|| corrupt("truncated"))?;
    if crc32c::crc32c(summed) != u32::from_le_bytes(*crc) {
        return Err(corrupt("its checksum does not match"));
    }
    let meta = fields.snapshot().ok_or_else(|| corrupt("its header is cut short"))?;
    let payload = fields.0.len().checked_sub(FOOTER_LEN);
    let payload = payload.ok_or_else(|| corrupt("it has no footer"))?;
    let length = codec::FieldDecoder(&fields.0[payload..]).u64();
    if length != Some(payload as u64) {
        return Err(corrupt("its length differs from its footer"));
    }
    Ok((meta, payload))
}
