//! An image archive on local disk: received, decompressed, indexed, and read as OCI layout or docker-save.
//!
//! Everything here is read-only after the spool. Returned data has a valid shape; layer digests are checked
//! where their bytes are read anyway (in containerd, or while a docker-save layer is hashed).

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
use warren_registry::{MAX_DOCUMENT, Reference};

use crate::error::Error;

pub(crate) use candidate::ImageCandidate;
pub(crate) use tarball::Span;

/// Time without data after which the sender counts as lost.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const CHUNK: usize = 256 << 10;
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// Receives an archive into an unnamed file in `dir`. The kernel removes it when the last handle is closed,
/// even when this process is killed.
pub(crate) async fn spool<R>(mut from: R, dir: &Path, limit: u64) -> Result<File, Error>
where
    R: AsyncRead + Unpin,
{
    let failed = |source| Error::spool(dir, source);
    let mut to = tokio::fs::File::from_std(unnamed_file(dir).map_err(failed)?);
    let mut chunk = vec![0; CHUNK];
    let mut received = 0u64;
    loop {
        let interrupted = |reason: String| Error::Interrupted { received, reason };
        let read = tokio::time::timeout(IDLE_TIMEOUT, from.read(&mut chunk))
            .await
            .map_err(|_| interrupted(format!("no data for {IDLE_TIMEOUT:?}")))?
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

/// Creates a file and unlinks it.
fn unnamed_file(dir: &Path) -> std::io::Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!(".spool-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = dir.join(name);
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// An indexed archive.
#[derive(Debug)]
pub(crate) struct IndexedArchive {
    file: File,
    index: tarball::TarIndex,
}

impl IndexedArchive {
    /// Unpacks (into `dir`, at most `limit` bytes) and indexes a spooled archive. Blocking.
    pub fn open(spooled: File, dir: &Path, limit: u64) -> Result<Self, Error> {
        let mut magic = [0; 4];
        let length = spooled.read_at(&mut magic, 0).map_err(|error| Error::spool(dir, error))?;
        let file = match &magic[..length] {
            magic if magic.starts_with(GZIP_MAGIC) => gunzip(spooled, dir, limit)?,
            magic if magic.starts_with(ZSTD_MAGIC) => {
                let what = "a zstd-compressed archive".to_owned();
                return Err(Error::Unsupported { what, advice: "unpack it with `zstd -d` first" });
            }
            _ => spooled,
        };
        let index = tarball::TarIndex::read(&file).map_err(|error| match error {
            // The message of the tar crate has the bytes that it could not read.
            tarball::TarIndexError::Io(source) if source.kind() == std::io::ErrorKind::Other => {
                Error::NotAnArchive { found: first_bytes(&magic[..length]) }
            }
            tarball::TarIndexError::Io(source) => Error::NotAnArchive { found: source.to_string() },
            tarball::TarIndexError::Entry(error) => error,
        })?;
        Ok(Self { file, index })
    }

    /// The images of this archive that suit this machine. `name` overrides the name of the only image.
    pub fn candidates(&self, name: Option<&Reference>) -> Result<Vec<ImageCandidate>, Error> {
        // Newer `docker save` writes both forms into one archive; the OCI layout is more detailed.
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
    fn document(&self, name: &str, referrer: &str) -> Result<Vec<u8>, Error> {
        let missing = || Error::MissingBlob { blob: name.to_owned(), referrer: referrer.to_owned() };
        let span = self.span(name).ok_or_else(missing)?;
        if span.size > MAX_DOCUMENT {
            let reason = format!("it has {} bytes, at most {MAX_DOCUMENT} are allowed", span.size);
            return Err(Error::document(name, reason));
        }
        let mut bytes = vec![0; span.size as usize];
        self.file.read_exact_at(&mut bytes, span.offset).map_err(|error| Error::document(name, error))?;
        Ok(bytes)
    }
}

/// Describes bytes that are no archive.
fn first_bytes(bytes: &[u8]) -> String {
    let hexadecimal: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    match hexadecimal.is_empty() {
        true => "the file is empty".to_owned(),
        false => format!("a file that is no tar and starts with the bytes {}", hexadecimal.join(" ")),
    }
}

fn parse<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|error| Error::document(name, error))
}

fn gunzip(packed: File, dir: &Path, limit: u64) -> Result<File, Error> {
    let failed = |source| Error::spool(dir, source);
    let mut plain = unnamed_file(dir).map_err(failed)?;
    let mut position = 0;
    let reader =
        std::io::BufReader::with_capacity(CHUNK, FileReader { file: &packed, position: &mut position });
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

/// Reads a file at its own position, independent of the shared file offset.
struct FileReader<'a> {
    file: &'a File,
    position: &'a mut u64,
}

impl Read for FileReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(buffer, *self.position)?;
        *self.position += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests;
