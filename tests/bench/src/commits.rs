//! Durable commits: at the raft driver, and through the API with mutual TLS.
//!
//! Every store is on the disk that holds `target/`, one per engine, open at the same time. A round measures
//! the plain disk (append and fdatasync), then each engine in turn with each number of writers, so that a
//! disturbance of the machine affects all of them; ratios are taken within a round.

mod api;
pub mod driver;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use warren_log::LogEngine;

use crate::figures::BenchFigures;

/// The directory of the measured data.
const DISK: &str = "target";
const ROUNDS: usize = 7;
/// The duration of one cell of one round.
const SPAN: Duration = Duration::from_millis(700);
/// The numbers of concurrent writers.
const WRITERS: [usize; 3] = [1, 32, 256];
/// The record for the figure of the plain disk: about the size of one encrypted command.
const RECORD: usize = 300;

/// The result of one cell of one round.
struct CommitSample {
    commits: usize,
    elapsed: Duration,
    /// Durable writes of the log in that time.
    writes: u64,
    /// Of each commit, sorted.
    latencies: Vec<Duration>,
}

/// Something that commits.
trait CommitBenchmark {
    /// Commits with `writers` concurrent writers for [`SPAN`].
    fn measure(&mut self, runtime: &Runtime, writers: usize) -> anyhow::Result<CommitSample>;
}

pub fn measure(figures: &mut BenchFigures) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    println!("\ndurable commits, one manager, commands straight to the raft driver");
    let mut drivers = Vec::new();
    for engine in LogEngine::ALL {
        drivers.push((engine, driver::DriverBenchmark::open(&runtime, &scratch()?, engine)?));
    }
    CommitTable::fill(&runtime, &mut drivers)?.show(figures, "driver", Some("> 5000"));
    drop(drivers);
    println!("\ndurable commits through the API: creating services, mutual TLS on loopback");
    let mut apis = Vec::new();
    for engine in LogEngine::ALL {
        apis.push((engine, api::ApiBenchmark::start(&runtime, scratch()?, engine)?));
    }
    CommitTable::fill(&runtime, &mut apis)?.show(figures, "API", None);
    Ok(())
}

/// A directory on the disk that holds `target/`.
pub fn scratch() -> anyhow::Result<TempDir> {
    let disk = Path::new(DISK);
    let made = tempfile::Builder::new().prefix("bench-").tempdir_in(disk);
    made.with_context(|| format!("making a directory in {}", disk.display()))
}

/// All samples of one kind of subject.
struct CommitTable {
    /// fdatasyncs per second of the plain disk, by round.
    disk: Vec<f64>,
    /// By engine and number of writers: one sample per round.
    cells: Vec<(LogEngine, usize, Vec<CommitSample>)>,
}

impl CommitTable {
    fn fill<S: CommitBenchmark>(runtime: &Runtime, subjects: &mut [(LogEngine, S)]) -> anyhow::Result<Self> {
        let mut table = Self { disk: Vec::new(), cells: Vec::new() };
        for (engine, _) in subjects.iter() {
            table.cells.extend(WRITERS.map(|writers| (*engine, writers, Vec::new())));
        }
        // The first round warms caches and is discarded.
        for round in 0..=ROUNDS {
            let plain = plain_disk()?;
            let mut found = Vec::new();
            for writers in WRITERS {
                for (engine, subject) in subjects.iter_mut() {
                    found.push((*engine, writers, subject.measure(runtime, writers)?));
                }
            }
            if round > 0 {
                table.disk.push(plain);
                table.add_samples(found);
            }
        }
        Ok(table)
    }

    fn add_samples(&mut self, found: Vec<(LogEngine, usize, CommitSample)>) {
        for (engine, writers, sample) in found {
            let cell = self.cells.iter_mut().find(|(e, w, _)| (*e, *w) == (engine, writers));
            cell.expect("there is a cell for every engine and number of writers").2.push(sample);
        }
    }

    fn rates(&self, engine: LogEngine, writers: usize) -> Vec<f64> {
        let cell = self.cells.iter().find(|(e, w, _)| (*e, *w) == (engine, writers));
        cell.map(|(_, _, samples)| samples.iter().map(CommitSample::rate).collect()).unwrap_or_default()
    }

    fn show(&self, figures: &mut BenchFigures, what: &str, aim_of_32: Option<&str>) {
        let record = format!("plain file beside it: append {RECORD} bytes, fdatasync");
        figures.add_samples(&record, &self.disk, "per second", "");
        for (engine, writers, samples) in &self.cells {
            let name = |figure: &str| format!("{what}, {engine}, {writers} writers: {figure}");
            let of = |figure: fn(&CommitSample) -> f64| samples.iter().map(figure).collect::<Vec<_>>();
            let aim = aim_of_32.filter(|_| *writers == 32).unwrap_or_default();
            figures.add_samples(&name("commits"), &of(CommitSample::rate), "per second", aim);
            let writes = of(CommitSample::writes_per_1000);
            figures.add_samples(&name("durable writes per 1000 commits"), &writes, "", "");
            let syncs: Vec<f64> = writes.iter().map(|writes| writes * syncs_per_write(*engine)).collect();
            figures.add_samples(&name("fdatasyncs per 1000 commits"), &syncs, "", "");
            figures.add_samples(&name("p50"), &of(|sample| sample.quantile(0.5)), "ms", "");
            figures.add_samples(&name("p99"), &of(|sample| sample.quantile(0.99)), "ms", "");
        }
        for engine in LogEngine::ALL {
            let pairs = self.rates(engine, 32).into_iter().zip(self.rates(engine, 1));
            let ratios: Vec<f64> = pairs.map(|(many, one)| many / one).collect();
            let aim = aim_of_32.map_or("", |_| ">= 5");
            figures.add_samples(
                &format!("{what}, {engine}: 32 writers to 1, round by round"),
                &ratios,
                "x",
                aim,
            );
        }
    }
}

impl CommitSample {
    /// Over the latencies of all writers.
    fn new(elapsed: Duration, writes: u64, latencies: Vec<Vec<Duration>>) -> Self {
        let mut latencies = latencies.concat();
        latencies.sort_unstable();
        Self { commits: latencies.len(), elapsed, writes, latencies }
    }

    fn rate(&self) -> f64 {
        self.commits as f64 / self.elapsed.as_secs_f64()
    }

    fn writes_per_1000(&self) -> f64 {
        self.writes as f64 * 1000.0 / self.commits.max(1) as f64
    }

    /// In milliseconds.
    fn quantile(&self, share: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1) as f64;
        let found = self.latencies.get((last * share).round() as usize);
        found.map_or(0.0, |latency| latency.as_secs_f64() * 1000.0)
    }
}

/// fdatasyncs of one durable write, as `strace -f -e fdatasync` counts them beside `warren cluster info`: the
/// data file of sled may be older than it appears, so its receipt is synced as well.
fn syncs_per_write(engine: LogEngine) -> f64 {
    match engine {
        LogEngine::Redb => 1.0,
        LogEngine::Sled => 2.0,
    }
}

/// fdatasyncs per second of a file that grows by [`RECORD`] bytes each time.
fn plain_disk() -> anyhow::Result<f64> {
    let directory = scratch()?;
    let mut file = File::create(directory.path().join("plain"))?;
    let (record, start, mut done) = ([7; RECORD], Instant::now(), 0);
    while start.elapsed() < SPAN {
        file.write_all(&record)?;
        file.sync_data()?;
        done += 1;
    }
    Ok(f64::from(done) / start.elapsed().as_secs_f64())
}
