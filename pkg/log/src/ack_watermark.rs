//! The number of the latest acknowledged write, in a small file outside the engine: an engine that opens
//! with a lower number has lost data and is rejected.
//!
//! The file has two pages. Number `n` goes into page `n % 2`: n u64, then its CRC32C u32 (little-endian),
//! so that a torn write leaves the previous number intact. A number that was not synced may be lost by a
//! power cut, but is never too high.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use crate::{
    Error, Result, codec,
    fsync::{sync_parent, with_suffix},
};

const PAGE: usize = 4096;
const NAME: &str = "receipt";
const LEN: usize = 12;

/// The persistent number of the latest acknowledged write.
#[derive(Debug)]
pub(crate) struct AckWatermark {
    file: File,
    path: PathBuf,
    number: u64,
}

impl AckWatermark {
    /// Path of the watermark file of the log at `path`.
    pub fn path_of(path: &Path) -> PathBuf {
        with_suffix(path, ".receipt")
    }

    /// Opens the file; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if neither page can be read.
    pub fn open(path: PathBuf) -> Result<Option<Self>> {
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("open", path)(error)),
        };
        let mut pages = [[0; LEN]; 2];
        let length = file.metadata().map_err(Error::io("read", &path))?.len();
        if length == 2 * PAGE as u64 {
            for (page, start) in pages.iter_mut().zip([0, PAGE as u64]) {
                file.read_exact_at(page, start).map_err(Error::io("read", &path))?;
            }
        }
        let number = pages.iter().filter_map(decode).max();
        let what = "neither of the numbers in it matches its checksum".to_owned();
        let number = number.ok_or_else(|| Error::Corrupt { path: path.clone(), what })?;
        Ok(Some(Self { file, path, number }))
    }

    /// Creates a file with number 0. When this returns, it and its name are durable.
    pub fn create(path: PathBuf) -> Result<Self> {
        let temporary = with_suffix(&path, ".tmp");
        let mut content = vec![0; 2 * PAGE];
        for start in [0, PAGE] {
            content[start..start + LEN].copy_from_slice(&encode(0));
        }
        std::fs::write(&temporary, content)
            .and_then(|()| File::open(&temporary)?.sync_all())
            .and_then(|()| std::fs::rename(&temporary, &path))
            .map_err(Error::io("create", &path))?;
        sync_parent(&path)?;
        let file = OpenOptions::new().read(true).write(true).open(&path);
        Ok(Self { file: file.map_err(Error::io("open", &path))?, path, number: 0 })
    }

    /// The number of the latest write known to be acknowledged.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Records that write `number` is durable in the engine. One fdatasync if `is_durable`. The watermark
    /// never decreases: a lower number changes nothing.
    pub fn advance(&mut self, number: u64, is_durable: bool) -> Result<()> {
        let number = number.max(self.number);
        let start = number % 2 * PAGE as u64;
        self.file
            .write_all_at(&encode(number), start)
            .and_then(|()| if is_durable { self.file.sync_data() } else { Ok(()) })
            .map_err(Error::io("write", &self.path))?;
        self.number = number;
        Ok(())
    }
}

/// Encodes a page with a number.
pub(crate) fn encode(number: u64) -> [u8; LEN] {
    let mut page = [0; LEN];
    let (head, crc) = page.split_at_mut(8);
    head.copy_from_slice(&number.to_le_bytes());
    crc.copy_from_slice(&codec::checksum(NAME.as_bytes(), &number.to_le_bytes()).to_le_bytes());
    page
}

/// Decodes the number of a page; `None` if it is damaged.
pub(crate) fn decode(page: &[u8; LEN]) -> Option<u64> {
    let number = codec::FieldDecoder(page).u64()?;
    (encode(number) == *page).then_some(number)
}
