//! An archive of images on local disk: received, unpacked if compressed, indexed, and read as OCI layout or
//! docker-save.
//!
//! Everything here is read-only after the spool. What it returns has been checked for shape; the digests of
//! layers are checked where their bytes are read anyway (in containerd, or while hashing a docker-save
//! layer).

mod candidate;
mod docker;
mod oci;
mod tarball;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use crate::document::MAX_DOCUMENT;
use crate::error::Error;
use crate::reference::Reference;

pub(crate) use candidate::Candidate;
pub(crate) use tarball::Span;

/// A sender that says nothing for this long is taken for dead.
const IDLE: Duration = Duration::from_secs(60);
const CHUNK: usize = 256 << 10;
const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// Receives an archive into a nameless file in `dir`. The file is gone when the last handle to it is closed,
/// even when this process is killed.
pub(crate) async fn spool<R>(mut from: R, dir: &Path, limit: u64) -> Result<File, Error>
where
    R: AsyncRead + Unpin,
{
    let failed = |source| Error::spool(dir, source);
    let mut to = tokio::fs::File::from_std(nameless(dir).map_err(failed)?);
    let mut chunk = vec![0; CHUNK];
    let mut received = 0u64;
    loop {
        let interrupted = |reason: String| Error::Interrupted { received, reason };
        let read = tokio::time::timeout(IDLE, from.read(&mut chunk))
            .await
            .map_err(|_| interrupted(format!("nothing came for {IDLE:?}")))?
            .map_err(|error| interrupted(error.to_string()))?;
        if read == 0 {
            break;
        }
        received += read as u64;
        if received > limit {
            return Err(Error::TooLarge { limit });
        }
        to.write_all(&chunk[..read]).await.map_err(failed)?;
    }
    to.flush().await.map_err(failed)?;
    Ok(to.into_std().await)
}

/// A file that has no name after this call.
fn nameless(dir: &Path) -> std::io::Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!(".spool-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = dir.join(name);
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// An indexed archive.
#[derive(Debug)]
pub(crate) struct Archive {
    file: File,
    index: tarball::Index,
}

impl Archive {
    /// Unpacks (into `dir`, at most `limit` bytes) and indexes a spooled archive. Blocking.
    pub fn open(spooled: File, dir: &Path, limit: u64) -> Result<Self, Error> {
        let mut magic = [0; 4];
        let length = spooled.read_at(&mut magic, 0).map_err(|error| Error::spool(dir, error))?;
        let file = match &magic[..length] {
            magic if magic.starts_with(GZIP) => gunzip(spooled, dir, limit)?,
            magic if magic.starts_with(ZSTD) => {
                let what = "a zstd-compressed archive".to_owned();
                return Err(Error::Unsupported { what, advice: "unpack it with `zstd -d` first" });
            }
            _ => spooled,
        };
        let index = tarball::Index::read(&file).map_err(|error| match error {
            tarball::Failure::Io(source) => Error::NotAnArchive { found: source.to_string() },
            tarball::Failure::Entry(error) => error,
        })?;
        Ok(Self { file, index })
    }

    /// The images this archive offers to this machine. `name` overrides what the archive calls its only
    /// image.
    pub fn candidates(&self, name: Option<&Reference>) -> Result<Vec<Candidate>, Error> {
        // Newer `docker save` writes both forms into one archive; the OCI layout says more.
        let mut found = if self.index.get("index.json").is_some() {
            oci::candidates(self)?
        } else if self.index.get("manifest.json").is_some() {
            docker::candidates(self)?
        } else {
            let found = format!("a tar of {} files without index.json or manifest.json", self.index.len());
            return Err(Error::NotAnArchive { found });
        };
        match (name, &mut found[..]) {
            (Some(name), [only]) => only.names = vec![name.clone()],
            (Some(_), several) => return Err(Error::AmbiguousName { found: several.len() }),
            (None, _) => {}
        }
        match found.iter().find(|candidate| candidate.names.is_empty()) {
            Some(candidate) => {
                Err(Error::Unnamed { tag: candidate.bare_tag.clone().unwrap_or("none".into()) })
            }
            None => Ok(found),
        }
    }

    /// Another handle to the archive's bytes.
    pub fn file(&self) -> std::io::Result<File> {
        self.file.try_clone()
    }

    fn span(&self, name: &str) -> Option<Span> {
        self.index.get(name)
    }

    /// The bytes of a small document.
    fn document(&self, name: &str, wanted_by: &str) -> Result<Vec<u8>, Error> {
        let missing = || Error::MissingBlob { blob: name.to_owned(), wanted_by: wanted_by.to_owned() };
        let span = self.span(name).ok_or_else(missing)?;
        if span.size > MAX_DOCUMENT {
            let reason = format!("it has {} bytes, a document has at most {MAX_DOCUMENT}", span.size);
            return Err(Error::document(name, reason));
        }
        let mut bytes = vec![0; span.size as usize];
        self.file.read_exact_at(&mut bytes, span.offset).map_err(|error| Error::document(name, error))?;
        Ok(bytes)
    }
}

fn parse<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|error| Error::document(name, error))
}

fn gunzip(packed: File, dir: &Path, limit: u64) -> Result<File, Error> {
    let failed = |source| Error::spool(dir, source);
    let mut plain = nameless(dir).map_err(failed)?;
    let mut position = 0;
    let reader = std::io::BufReader::with_capacity(CHUNK, At { file: &packed, position: &mut position });
    let mut reader = flate2::bufread::MultiGzDecoder::new(reader);
    let mut chunk = vec![0; CHUNK];
    let mut written = 0u64;
    loop {
        let damaged =
            |error: std::io::Error| Error::NotAnArchive { found: format!("damaged gzip data: {error}") };
        let read = reader.read(&mut chunk).map_err(damaged)?;
        if read == 0 {
            return Ok(plain);
        }
        written += read as u64;
        if written > limit {
            return Err(Error::TooLarge { limit });
        }
        plain.write_all(&chunk[..read]).map_err(failed)?;
    }
}

/// Reads a file from a position of its own, whatever the shared one is.
struct At<'a> {
    file: &'a File,
    position: &'a mut u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(buffer, *self.position)?;
        *self.position += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests;
