//! Resource usage of the machine, from kernel counters.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use warren_types::{Bytes, MilliCpu};

/// Memory of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryUsage {
    pub total: Bytes,
    pub used: Bytes,
}

/// A file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskUsage {
    pub total: Bytes,
    pub used: Bytes,
}

/// Percentage of the last minute in which all tasks stalled on memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MemoryStall(pub f64);

/// One sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct NodeSample {
    pub cpu: MilliCpu,
    /// `None` if the kernel has no such counter.
    pub memory: Option<MemoryUsage>,
    pub stall: Option<MemoryStall>,
    pub disk: Option<DiskUsage>,
}

/// Takes samples; CPU is the average since the previous sample.
#[derive(Debug)]
pub(crate) struct NodeMeter {
    data_dir: PathBuf,
    last: Mutex<Option<LastSample>>,
    /// The newest measurement of [`Self::disk`].
    last_disk: Mutex<Option<DiskUsage>>,
}

#[derive(Debug, Clone, Copy)]
struct LastSample {
    at: Instant,
    busy: u64,
    usage: NodeSample,
}

/// Maximum age of a sample before a new one is taken; regular users do not reach it.
const MAX_SAMPLE_AGE: Duration = Duration::from_secs(12);

impl NodeMeter {
    /// For the file system of `data_dir`.
    pub fn new(data_dir: PathBuf) -> Self {
        Self { data_dir, last: Mutex::new(None), last_disk: Mutex::new(None) }
    }

    fn last(&self) -> MutexGuard<'_, Option<LastSample>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a sample. Reads a few small kernel files, which never block.
    pub fn sample(&self) -> NodeSample {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let (busy, at) = (busy_ticks(&read("/proc/stat")), Instant::now());
        let mut last = self.last();
        let cpu = last.map_or(MilliCpu(0), |last| {
            milli_cpu(busy.saturating_sub(last.busy), at.saturating_duration_since(last.at).as_millis())
        });
        let (memory, stall) = (memory(&read("/proc/meminfo")), stall(&read("/proc/pressure/memory")));
        // The disk monitor measures it more often.
        let last_disk = *self.last_disk.lock().unwrap_or_else(PoisonError::into_inner);
        let usage = NodeSample { cpu, memory, stall, disk: last_disk.or_else(|| self.disk()) };
        *last = Some(LastSample { at, busy, usage });
        usage
    }

    /// The newest sample, or a new one if that is too old.
    pub fn latest(&self) -> NodeSample {
        let last = *self.last();
        match last {
            Some(last) if last.at.elapsed() < MAX_SAMPLE_AGE => last.usage,
            _ => self.sample(),
        }
    }

    /// Measures the file system of the data directory, with one system call; `None` if it cannot be read.
    pub fn disk(&self) -> Option<DiskUsage> {
        let disk = super::disk(&self.data_dir);
        *self.last_disk.lock().unwrap_or_else(PoisonError::into_inner) = disk;
        disk
    }
}

/// Ticks of 10 ms (`USER_HZ`, fixed by the kernel's interface) per milliseconds, in thousandths of a core.
fn milli_cpu(ticks: u64, millis: u128) -> MilliCpu {
    let share = u128::from(ticks) * 10 * 1000 / millis.max(1);
    MilliCpu(u64::try_from(share).unwrap_or(u64::MAX))
}

/// Busy ticks of all CPUs from `/proc/stat` (proc(5)): all columns except idle and iowait, without guest
/// time, which user time includes.
fn busy_ticks(stat: &str) -> u64 {
    let Some(line) = stat.lines().find_map(|line| line.strip_prefix("cpu ")) else { return 0 };
    let columns = line.split_whitespace().map(|column| column.parse::<u64>().unwrap_or(0));
    columns.take(8).enumerate().filter(|(place, _)| !matches!(place, 3 | 4)).map(|(_, ticks)| ticks).sum()
}

/// Memory from `/proc/meminfo`: what is not available without swapping counts as used.
pub(crate) fn memory(meminfo: &str) -> Option<MemoryUsage> {
    let kibibytes = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    let total = kibibytes("MemTotal:")?.saturating_mul(1024);
    let available = kibibytes("MemAvailable:")?.saturating_mul(1024);
    Some(MemoryUsage { total: Bytes(total), used: Bytes(total.saturating_sub(available)) })
}

/// From `/proc/pressure/memory` (Documentation/accounting/psi.rst), which is optional in the kernel.
fn stall(pressure: &str) -> Option<MemoryStall> {
    let line = pressure.lines().find_map(|line| line.strip_prefix("full "))?;
    let share = line.split(' ').find_map(|word| word.strip_prefix("avg60="))?;
    share.parse().ok().map(MemoryStall)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_as_documented() {
        let stat = "cpu  100 1 20 5000 300 4 5 6 70 8\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(busy_ticks(stat), 100 + 1 + 20 + 4 + 5 + 6);
        assert_eq!(busy_ticks("nonsense"), 0);
        let meminfo = "MemTotal:       16000 kB\nMemFree: 1 kB\nMemAvailable:    4000 kB\n";
        let expected = MemoryUsage { total: Bytes(16000 << 10), used: Bytes(12000 << 10) };
        assert_eq!(memory(meminfo), Some(expected));
        assert_eq!(memory("MemTotal: many\n"), None);
    }

    #[test]
    fn cpu_is_an_average() {
        assert_eq!(milli_cpu(50, 1000), MilliCpu(500));
        assert_eq!(milli_cpu(1000, 5000), MilliCpu(2000));
        assert_eq!(milli_cpu(1, 0), MilliCpu(10_000), "two samples at once do not divide by zero");
    }

    #[test]
    fn full_stall_over_sixty_seconds_is_read() {
        let some = "some avg10=9.00 avg60=8.00 avg300=7.00 total=6";
        let pressure = format!("{some}\nfull avg10=1.00 avg60=2.50 avg300=3.00 total=4\n");
        assert_eq!(stall(&pressure), Some(MemoryStall(2.5)));
        assert_eq!(stall(""), None);
    }

    #[tokio::test(start_paused = true)]
    async fn host_can_be_measured() {
        let meter = NodeMeter::new("/".into());
        let first = meter.latest();
        assert_eq!(first.cpu, MilliCpu(0), "there is no sample before the first");
        assert!(first.memory.is_some_and(|memory| memory.used.0 > 0) && first.disk.is_some());
        assert_eq!(meter.latest(), first, "it is new enough");
        tokio::time::advance(MAX_SAMPLE_AGE).await;
        meter.latest();
        assert_eq!(meter.last().unwrap().at, Instant::now(), "it was taken again");
    }
}
