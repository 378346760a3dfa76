//! A raft log in any engine's [`Table`]: what is written, what is verified, and what is refused.

use std::{
    cmp::Ordering,
    fmt::{self, Debug},
    ops::RangeInclusive,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use crate::{
    Batch, Entry, Error, LOG_FORMAT, Loaded, LogStore, Owner, Recovered, Result, SnapshotMeta, Stats, codec,
    extent::Extent,
    head::Head,
    owner,
    receipt::Receipt,
    table::{Change, Table},
};

const FORMAT: &str = "format";
const HEAD: &str = "head";
const OWNER: &str = "owner";

/// A raft log on a disk. The engine keeps it; that it is whole is verified here.
pub struct DiskLog<T: Table> {
    path: PathBuf,
    table: Closing<T>,
    head: Head,
    receipt: Receipt,
    recovered: Option<Recovered>,
    stats: Stats,
    /// A write failed, and nobody knows what is on the disk.
    has_failed: bool,
}

impl<T: Table> DiskLog<T> {
    /// Opens the log at `path`; creates it if there is none. Its directory must exist.
    ///
    /// # Errors
    /// [`Error::Newer`] and [`Error::Older`] for a log of another version, [`Error::Corrupt`] for a
    /// damaged one, [`Error::InUse`] if another process has it open, [`Error::Full`] if there is no
    /// room on the disk.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        Self::open_as(path.into(), None)
    }

    /// As [`DiskLog::open`], for the member that the log belongs to.
    ///
    /// # Errors
    /// [`Error::OtherOwner`] for the log of another one; as [`DiskLog::open`].
    pub fn open_of(path: impl Into<PathBuf>, owner: Owner) -> Result<Self> {
        Self::open_as(path.into(), Some(owner))
    }

    fn open_as(path: PathBuf, owner: Option<Owner>) -> Result<Self> {
        let is_there = path.try_exists().map_err(Error::io("look for", &path))?;
        let receipt = Receipt::open(Receipt::path_of(&path));
        let receipt = match receipt {
            // It is made before the log, so that there is never a log without one.
            Ok(None) if !is_there => Ok(Some(Receipt::create(Receipt::path_of(&path))?)),
            Ok(Some(found)) if !is_there => {
                check_reach(&path, 0, &found)?;
                Ok(Some(found))
            }
            found => found,
        };
        let (table, recovered) = guarded(&path, || T::open(&path))?;
        let table = Closing(Some(table));
        let format = guarded(&path, || read_format(&path, table.get()))?;
        if let (Some(()), Some(wanted)) = (format, owner) {
            guarded(&path, || check_owner(&path, table.get(), wanted))?;
        }
        // The receipt's error waits until it is clear that this version has anything to say.
        let Some(receipt) = receipt? else {
            let what = format!("{} is missing", Receipt::path_of(&path).display());
            return Err(Error::Corrupt { path, what });
        };
        let mut log = Self {
            path,
            table,
            head: Head::default(),
            receipt,
            recovered,
            stats: Stats::default(),
            // Until all of this is done.
            has_failed: true,
        };
        if format.is_some() {
            log.head = log.read_head()?;
        }
        check_reach(&log.path, log.head.number, &log.receipt)?;
        if format.is_none() {
            log.create(owner)?;
        }
        log.receipt.put(log.head.number, true)?;
        log.has_failed = false;
        Ok(log)
    }

    /// Makes a new table a log.
    fn create(&mut self, owner: Option<Owner>) -> Result<()> {
        let mut records = vec![
            (FORMAT, codec::seal(FORMAT.as_bytes(), &LOG_FORMAT.to_le_bytes())),
            (HEAD, codec::seal(HEAD.as_bytes(), &codec::encode_head(&self.head))),
        ];
        records.extend(owner.map(|it| (OWNER, codec::seal(OWNER.as_bytes(), &owner::encode(&it)))));
        let change = Change { records, ..Change::default() };
        guarded(&self.path, || self.table.get_mut().commit("create", &change))
    }

    fn read_head(&self) -> Result<Head> {
        let value = guarded(&self.path, || self.table.get().get(HEAD))?;
        let value = value.ok_or_else(|| self.corrupt(format!("its record `{HEAD}` is missing")))?;
        codec::unseal(HEAD.as_bytes(), &value)
            .and_then(codec::decode_head)
            .ok_or_else(|| self.corrupt(format!("its record `{HEAD}` does not match its checksum")))
    }

    /// Reads and verifies all entries.
    fn read_entries(&self) -> Result<Vec<Entry>> {
        let Extent { first, last, .. } = self.head.extent;
        let (mut entries, mut sum) = (Vec::new(), 0u64);
        // One more on both sides: there must be nothing.
        self.scan(first - 1..=last.saturating_add(1), &mut |index, value| {
            let expected = first + entries.len() as u64;
            if index < first || index > last {
                return Err(self.corrupt(format!("entry {index} is there, but the log is {first} to {last}")));
            }
            if index != expected {
                return Err(self.corrupt(format!("entry {expected} is missing")));
            }
            let entry = codec::decode_entry(index, value);
            entries.push(entry.map_err(|what| self.corrupt(format!("entry {index}: {what}")))?);
            sum = sum.wrapping_add(codec::addend(value));
            Ok(())
        })?;
        let next = first + entries.len() as u64;
        if next <= last {
            return Err(self.corrupt(format!("entry {next} is missing")));
        }
        if sum != self.head.sum {
            let what = format!("entries {first} to {last}: one of them is not what was written last");
            return Err(self.corrupt(what));
        }
        Ok(entries)
    }

    /// What the stored entries of a range add to the sum.
    fn sum_of(&self, indexes: RangeInclusive<u64>) -> Result<u64> {
        let mut sum = 0u64;
        self.scan(indexes, &mut |_, value| {
            sum = sum.wrapping_add(codec::addend(value));
            Ok(())
        })?;
        Ok(sum)
    }

    fn scan(
        &self,
        indexes: RangeInclusive<u64>,
        visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        guarded(&self.path, || self.table.get().scan(indexes, visit))
    }

    /// One durable write.
    fn write(&mut self, operation: &'static str, head: Head, mut change: Change) -> Result<()> {
        change.records.push((HEAD, codec::seal(HEAD.as_bytes(), &codec::encode_head(&head))));
        guarded(&self.path, || self.table.get_mut().commit(operation, &change))?;
        self.receipt.put(head.number, T::RECEIPT_IS_DURABLE)?;
        self.head = head;
        self.stats.durable_writes += 1;
        Ok(())
    }

    /// Does `write`, and after it failed refuses all further ones.
    fn once(&mut self, write: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.has_failed = true;
        write(self)?;
        self.has_failed = false;
        Ok(())
    }

    fn ensure_usable(&self) -> Result<()> {
        if self.has_failed { Err(Error::Failed { path: self.path.clone() }) } else { Ok(()) }
    }

    fn corrupt(&self, what: String) -> Error {
        Error::Corrupt { path: self.path.clone(), what }
    }
}

impl<T: Table> LogStore for DiskLog<T> {
    fn load(&self) -> Result<Loaded> {
        self.ensure_usable()?;
        Ok(Loaded {
            hard_state: self.head.hard_state,
            conf_state: self.head.conf_state.clone(),
            snapshot: self.head.snapshot.clone(),
            entries: self.read_entries()?,
            recovered: self.recovered.clone(),
            acknowledged: self.head.acknowledged.clone(),
        })
    }

    fn append(&mut self, batch: &Batch) -> Result<()> {
        self.ensure_usable()?;
        if batch.is_empty() {
            return Ok(());
        }
        let before = self.head.extent;
        let after = before.append(batch)?;
        self.once(|log| {
            let from = if batch.snapshot.is_some() {
                Some(before.first)
            } else {
                batch.entries.first().map(|head| head.index)
            };
            let remove = from.map(|from| from..=before.last).filter(|range| !range.is_empty());
            let removed = remove.clone().map_or(Ok(0), |range| log.sum_of(range))?;
            let encode = |entry: &Entry| (entry.index, codec::encode_entry(entry));
            let entries: Vec<_> = batch.entries.iter().map(encode).collect();
            let added = entries.iter().fold(0u64, |sum, (_, value)| sum.wrapping_add(codec::addend(value)));
            let sum = log.head.sum.wrapping_sub(removed).wrapping_add(added);
            let mut head = log.head.next(after, sum);
            head.set(batch);
            log.write("append to", head, Change { remove, entries, records: Vec::new() })
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
        self.once(|log| {
            let mut head = log.head.next(after, log.head.sum);
            head.set_snapshot(snapshot);
            log.write("record a snapshot in", head, Change::default())
        })?;
        self.stats.bytes_appended += codec::snapshot_len(snapshot) as u64;
        Ok(())
    }

    fn compact(&mut self, up_to: u64) -> Result<()> {
        self.ensure_usable()?;
        let before = self.head.extent;
        let after = before.compact(up_to)?;
        if after == before {
            return Ok(());
        }
        self.once(|log| {
            let range = before.first..=after.first - 1;
            let sum = log.head.sum.wrapping_sub(log.sum_of(range.clone())?);
            let head = log.head.next(after, sum);
            log.write("compact", head, Change { remove: Some(range), ..Change::default() })
        })
    }

    fn stats(&self) -> Stats {
        self.stats
    }
}

impl<T: Table> Drop for DiskLog<T> {
    fn drop(&mut self) {
        self.table.close();
        if !self.has_failed {
            // Without it, the next opening can only check less.
            let _ = self.receipt.put(self.head.number, true);
        }
    }
}

/// An engine until it is closed. It may panic even then, when it could not finish something; but what
/// was acknowledged is durable, and the next opening checks it.
struct Closing<T>(Option<T>);

impl<T> Closing<T> {
    fn get(&self) -> &T {
        self.0.as_ref().expect("nothing is asked of it after it was closed")
    }

    fn get_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("nothing is asked of it after it was closed")
    }

    fn close(&mut self) {
        let engine = self.0.take();
        // The panic has been printed, and there is nobody to hand it to.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(engine)));
    }
}

impl<T> Drop for Closing<T> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<T: Table> Debug for DiskLog<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskLog").field("path", &self.path).field("head", &self.head).finish_non_exhaustive()
    }
}

/// Whether the table is a log of this version; `None` if it is still empty.
fn read_format<T: Table>(path: &Path, table: &T) -> Result<Option<()>> {
    let Some(value) = table.get(FORMAT)? else { return Ok(None) };
    let body = codec::unseal(FORMAT.as_bytes(), &value);
    let what = format!("its record `{FORMAT}` does not match its checksum");
    let found = body.and_then(|body| codec::Fields(body).u32());
    let found = found.ok_or_else(|| Error::Corrupt { path: path.into(), what })?;
    let (path, supported) = (path.to_owned(), LOG_FORMAT);
    match found.cmp(&supported) {
        Ordering::Less => Err(Error::Older { path, found, supported }),
        Ordering::Equal => Ok(Some(())),
        Ordering::Greater => Err(Error::Newer { path, found, supported }),
    }
}

/// Refuses a log that is another member's.
fn check_owner<T: Table>(path: &Path, table: &T, wanted: Owner) -> Result<()> {
    let value = table.get(OWNER)?;
    let body = value.as_deref().and_then(|value| codec::unseal(OWNER.as_bytes(), value));
    match body.and_then(owner::decode) {
        Some(found) if found == wanted => Ok(()),
        Some(found) => Err(Error::OtherOwner { path: path.into(), found, wanted }),
        None => {
            let what = format!("its record `{OWNER}` is missing or does not match its checksum");
            Err(Error::Corrupt { path: path.into(), what })
        }
    }
}

/// Refuses a log that ends before what was acknowledged.
fn check_reach(path: &Path, number: u64, receipt: &Receipt) -> Result<()> {
    if number >= receipt.number() {
        return Ok(());
    }
    let acknowledged = receipt.number();
    let receipt = Receipt::path_of(path);
    let receipt = receipt.file_name().unwrap_or_default().display();
    let what = format!(
        "it ends with write {number}, but write {acknowledged} was acknowledged, as {receipt} beside it says"
    );
    Err(Error::Corrupt { path: path.into(), what })
}

/// Engines panic over some damage instead of reporting it.
fn guarded<R>(path: &Path, work: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word");
        let what = format!("its engine gave up over it: {text}");
        Err(Error::Corrupt { path: path.into(), what })
    })
}
