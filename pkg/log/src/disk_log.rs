//! A raft log on any engine's [`RecordTable`]: writes, verification, and rejection of damage.

use std::{
    cmp::Ordering,
    fmt::{self, Debug},
    ops::RangeInclusive,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use crate::{
    Error, LOG_FORMAT, LogOwner, LogStore, RaftEntry, Recovery, Result, SnapshotMeta, StoredLog, WriteBatch,
    WriteStats,
    ack_watermark::AckWatermark,
    codec,
    extent::LogExtent,
    head::LogHead,
    owner,
    table::{RecordTable, TableChange},
};

const FORMAT: &str = "format";
const HEAD: &str = "head";
const OWNER: &str = "owner";

/// A raft log on disk. The engine stores it; its integrity is verified here.
pub struct DiskLog<T: RecordTable> {
    path: PathBuf,
    table: CloseGuard<T>,
    head: LogHead,
    ack_watermark: AckWatermark,
    recovered: Option<Recovery>,
    stats: WriteStats,
    /// Whether a write failed, so that the state on disk is unknown.
    has_failed: bool,
}

impl<T: RecordTable> DiskLog<T> {
    /// Opens the log at `path`; creates it if there is none. Its directory must exist.
    ///
    /// # Errors
    /// [`Error::Newer`] and [`Error::Older`] for a log of another version, [`Error::Corrupt`] for a
    /// damaged one, [`Error::InUse`] if another process has it open, [`Error::Full`] if there is no
    /// room on the disk.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        Self::open_as(path.into(), None)
    }

    /// As [`DiskLog::open`], and checks the owner of the log.
    ///
    /// # Errors
    /// [`Error::OtherOwner`] for the log of another member; as [`DiskLog::open`].
    pub fn open_for(path: impl Into<PathBuf>, owner: LogOwner) -> Result<Self> {
        Self::open_as(path.into(), Some(owner))
    }

    fn open_as(path: PathBuf, owner: Option<LogOwner>) -> Result<Self> {
        let is_there = path.try_exists().map_err(Error::io("look for", &path))?;
        let watermark = AckWatermark::open(AckWatermark::path_of(&path));
        let watermark = match watermark {
            // Created before the log, so that a log without a watermark never exists.
            Ok(None) if !is_there => Ok(Some(AckWatermark::create(AckWatermark::path_of(&path))?)),
            Ok(Some(found)) if !is_there => {
                check_acknowledged(&path, 0, &found)?;
                Ok(Some(found))
            }
            found => found,
        };
        let (table, recovered) = catch_engine_panic(&path, || T::open(&path))?;
        let table = CloseGuard(Some(table));
        let format = catch_engine_panic(&path, || read_format(&path, table.get()))?;
        if let (Some(()), Some(expected)) = (format, owner) {
            catch_engine_panic(&path, || check_owner(&path, table.get(), expected))?;
        }
        // The watermark error is returned only after the format version was checked.
        let Some(watermark) = watermark? else {
            let what = format!("{} is missing", AckWatermark::path_of(&path).display());
            return Err(Error::Corrupt { path, what });
        };
        let mut log = Self {
            path,
            table,
            head: LogHead::default(),
            ack_watermark: watermark,
            recovered,
            stats: WriteStats::default(),
            // Reset at the end of this function.
            has_failed: true,
        };
        if format.is_some() {
            log.head = log.read_head()?;
        }
        check_acknowledged(&log.path, log.head.number, &log.ack_watermark)?;
        if format.is_none() {
            log.create(owner)?;
        }
        log.ack_watermark.advance(log.head.number, true)?;
        log.has_failed = false;
        Ok(log)
    }

    /// Initialises a new table as a log.
    fn create(&mut self, owner: Option<LogOwner>) -> Result<()> {
        let mut records = vec![
            (FORMAT, codec::seal(FORMAT.as_bytes(), &LOG_FORMAT.to_le_bytes())),
            (HEAD, codec::seal(HEAD.as_bytes(), &self.head.encode())),
        ];
        records.extend(owner.map(|it| (OWNER, codec::seal(OWNER.as_bytes(), &owner::encode(&it)))));
        let change = TableChange { records, ..TableChange::default() };
        catch_engine_panic(&self.path, || self.table.get_mut().commit("create", &change))
    }

    fn read_head(&self) -> Result<LogHead> {
        let value = catch_engine_panic(&self.path, || self.table.get().get(HEAD))?;
        let value = value.ok_or_else(|| self.corrupt(format!("its record `{HEAD}` is missing")))?;
        codec::unseal(HEAD.as_bytes(), &value)
            .and_then(LogHead::decode)
            .ok_or_else(|| self.corrupt(format!("its record `{HEAD}` does not match its checksum")))
    }

    /// Reads and verifies all entries.
    fn read_entries(&self) -> Result<Vec<RaftEntry>> {
        let LogExtent { first, last, .. } = self.head.extent;
        let (mut entries, mut sum) = (Vec::new(), 0u64);
        // Reads one more index on both sides, which must be empty.
        self.scan(first - 1..=last.saturating_add(1), &mut |index, value| {
            let expected = first + entries.len() as u64;
            if index < first || index > last {
                return Err(self.corrupt(format!("entry {index} exists, but the log is {first} to {last}")));
            }
            if index != expected {
                return Err(self.corrupt(format!("entry {expected} is missing")));
            }
            let entry = codec::decode_entry(index, value);
            entries.push(entry.map_err(|what| self.corrupt(format!("entry {index}: {what}")))?);
            sum = sum.wrapping_add(codec::entry_checksum(value));
            Ok(())
        })?;
        let next = first + entries.len() as u64;
        if next <= last {
            return Err(self.corrupt(format!("entry {next} is missing")));
        }
        if sum != self.head.sum {
            let what = format!("entries {first} to {last}: one of them is not the last written version");
            return Err(self.corrupt(what));
        }
        Ok(entries)
    }

    /// The checksum sum of a range of stored entries.
    fn sum_of(&self, indexes: RangeInclusive<u64>) -> Result<u64> {
        let mut sum = 0u64;
        self.scan(indexes, &mut |_, value| {
            sum = sum.wrapping_add(codec::entry_checksum(value));
            Ok(())
        })?;
        Ok(sum)
    }

    fn scan(
        &self,
        indexes: RangeInclusive<u64>,
        visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        catch_engine_panic(&self.path, || self.table.get().scan(indexes, visit))
    }

    /// One durable write.
    fn write(&mut self, operation: &'static str, head: LogHead, mut change: TableChange) -> Result<()> {
        change.records.push((HEAD, codec::seal(HEAD.as_bytes(), &head.encode())));
        catch_engine_panic(&self.path, || self.table.get_mut().commit(operation, &change))?;
        self.ack_watermark.advance(head.number, T::ACK_WATERMARK_IS_DURABLE)?;
        self.head = head;
        self.stats.durable_writes += 1;
        Ok(())
    }

    /// Runs `write`; after a failure all further writes are rejected.
    fn write_once(&mut self, write: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.has_failed = true;
        write(self)?;
        self.has_failed = false;
        Ok(())
    }

    fn ensure_usable(&self) -> Result<()> {
        if self.has_failed { Err(Error::AlreadyFailed { path: self.path.clone() }) } else { Ok(()) }
    }

    fn corrupt(&self, what: String) -> Error {
        Error::Corrupt { path: self.path.clone(), what }
    }
}

impl<T: RecordTable> LogStore for DiskLog<T> {
    fn load(&self) -> Result<StoredLog> {
        self.ensure_usable()?;
        Ok(StoredLog {
            hard_state: self.head.hard_state,
            conf_state: self.head.conf_state.clone(),
            snapshot: self.head.snapshot.clone(),
            entries: self.read_entries()?,
            recovered: self.recovered.clone(),
            acknowledged: self.head.acknowledged.clone(),
        })
    }

    fn append(&mut self, batch: &WriteBatch) -> Result<()> {
        self.ensure_usable()?;
        if batch.is_empty() {
            return Ok(());
        }
        let before = self.head.extent;
        let after = before.append(batch)?;
        self.write_once(|log| {
            let from = if batch.snapshot.is_some() {
                Some(before.first)
            } else {
                batch.entries.first().map(|head| head.index)
            };
            let remove = from.map(|from| from..=before.last).filter(|range| !range.is_empty());
            let removed = remove.clone().map_or(Ok(0), |range| log.sum_of(range))?;
            let encode = |entry: &RaftEntry| (entry.index, codec::encode_entry(entry));
            let entries: Vec<_> = batch.entries.iter().map(encode).collect();
            let added =
                entries.iter().fold(0u64, |sum, (_, value)| sum.wrapping_add(codec::entry_checksum(value)));
            let sum = log.head.sum.wrapping_sub(removed).wrapping_add(added);
            let mut head = log.head.next(after, sum);
            head.apply_batch(batch);
            log.write("append to", head, TableChange { remove, entries, records: Vec::new() })
        })?;
        self.stats.bytes_appended += batch.stored_bytes();
        Ok(())
    }

    fn set_snapshot(&mut self, snapshot: &SnapshotMeta) -> Result<()> {
        self.ensure_usable()?;
        if self.head.snapshot.as_ref() == Some(snapshot) {
            return Ok(());
        }
        let after = self.head.extent.set_snapshot(snapshot)?;
        self.write_once(|log| {
            let mut head = log.head.next(after, log.head.sum);
            head.set_snapshot(snapshot);
            log.write("record a snapshot in", head, TableChange::default())
        })?;
        self.stats.bytes_appended += codec::snapshot_meta_len(snapshot) as u64;
        Ok(())
    }

    fn compact(&mut self, up_to: u64) -> Result<()> {
        self.ensure_usable()?;
        let before = self.head.extent;
        let after = before.compact(up_to)?;
        if after == before {
            return Ok(());
        }
        self.write_once(|log| {
            let range = before.first..=after.first - 1;
            let sum = log.head.sum.wrapping_sub(log.sum_of(range.clone())?);
            let head = log.head.next(after, sum);
            log.write("compact", head, TableChange { remove: Some(range), ..TableChange::default() })
        })
    }

    fn stats(&self) -> WriteStats {
        self.stats
    }
}

impl<T: RecordTable> Drop for DiskLog<T> {
    fn drop(&mut self) {
        self.table.close();
        if !self.has_failed {
            // Without it, the next opening can only check less.
            let _ = self.ack_watermark.advance(self.head.number, true);
        }
    }
}

/// Closes an engine, which may panic if it could not finish something. What was acknowledged is durable,
/// and the next opening checks it.
struct CloseGuard<T>(Option<T>);

impl<T> CloseGuard<T> {
    fn get(&self) -> &T {
        self.0.as_ref().expect("it is not used after it was closed")
    }

    fn get_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("it is not used after it was closed")
    }

    fn close(&mut self) {
        let engine = self.0.take();
        // The panic was printed already.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(engine)));
    }
}

impl<T> Drop for CloseGuard<T> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<T: RecordTable> Debug for DiskLog<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskLog").field("path", &self.path).field("head", &self.head).finish_non_exhaustive()
    }
}

/// Checks that the table is a log of this version; `None` if it is empty.
fn read_format<T: RecordTable>(path: &Path, table: &T) -> Result<Option<()>> {
    let Some(value) = table.get(FORMAT)? else { return Ok(None) };
    let body = codec::unseal(FORMAT.as_bytes(), &value);
    let what = format!("its record `{FORMAT}` does not match its checksum");
    let found = body.and_then(|body| codec::FieldDecoder(body).u32());
    let found = found.ok_or_else(|| Error::Corrupt { path: path.into(), what })?;
    let (path, supported) = (path.to_owned(), LOG_FORMAT);
    match found.cmp(&supported) {
        Ordering::Less => Err(Error::Older { path, found, supported }),
        Ordering::Equal => Ok(Some(())),
        Ordering::Greater => Err(Error::Newer { path, found, supported }),
    }
}

/// Rejects a log of another member.
fn check_owner<T: RecordTable>(path: &Path, table: &T, expected: LogOwner) -> Result<()> {
    let value = table.get(OWNER)?;
    let body = value.as_deref().and_then(|value| codec::unseal(OWNER.as_bytes(), value));
    match body.and_then(owner::decode) {
        Some(found) if found == expected => Ok(()),
        Some(found) => Err(Error::OtherOwner { path: path.into(), found, expected }),
        None => {
            let what = format!("its record `{OWNER}` is missing or does not match its checksum");
            Err(Error::Corrupt { path: path.into(), what })
        }
    }
}

/// Rejects a log that ends before the acknowledged write.
fn check_acknowledged(path: &Path, number: u64, watermark: &AckWatermark) -> Result<()> {
    if number >= watermark.number() {
        return Ok(());
    }
    let acknowledged = watermark.number();
    let watermark = AckWatermark::path_of(path);
    let watermark = watermark.file_name().unwrap_or_default().display();
    let what = format!(
        "it ends with write {number}, but write {acknowledged} was acknowledged, according to {watermark}"
    );
    Err(Error::Corrupt { path: path.into(), what })
}

/// Engines panic on some damage instead of returning an error.
fn catch_engine_panic<R>(path: &Path, work: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        let what = format!("its engine panicked: {text}");
        Err(Error::Corrupt { path: path.into(), what })
    })
}
