//! 1 KiB lines at 100 MB/s: each is read once and in order, also by a reader that is dropped and reopened.

use std::io::{PipeWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use warren_container_logs::{OutputEntry, OutputReader, ReadOptions};
use warren_testkit::scratch::ScratchDir;

use crate::shim::{RunningLogger, disk_usage, runtime};

/// Including its newline.
const LINE: usize = 1024;
/// Of a second.
const LINES: u64 = 100_000_000 / LINE as u64;

/// Writes numbered lines, one call each, as evenly as possible; returns the duration.
fn feed(mut out: PipeWriter, count: u64) -> Duration {
    let start = Instant::now();
    let mut line = [b'.'; LINE];
    line[LINE - 1] = b'\n';
    for index in 0..count {
        line[..10].copy_from_slice(format!("{index:010}").as_bytes());
        out.write_all(&line).unwrap();
        // Busy-waits when ahead of the rate: a sleep would be longer than a hundred lines take.
        while index % 64 == 0 && start.elapsed().as_micros() < u128::from(index * 1_000_000 / LINES) {
            std::thread::yield_now();
        }
    }
    start.elapsed()
}

/// Follows until `count` lines were read, checks each, and reopens after every `piece` lines.
async fn follow(dir: &Path, count: u64, piece: u64) -> u32 {
    let (mut next, mut last, mut times) = (0, 0, 0);
    while next < count {
        let options = ReadOptions { since: Some(last + 1), follow: true, tail: None };
        let mut reader = OutputReader::open(dir, options).await.unwrap();
        times += 1;
        let target = (next + piece).min(count);
        while next < target {
            for entry in reader.next().await.unwrap().unwrap() {
                let OutputEntry::Line(line) = entry else {
                    assert!(matches!(entry, OutputEntry::Attempt { .. }), "{entry:?}");
                    continue;
                };
                assert_eq!(line.text.len(), LINE - 1);
                let number: u64 = std::str::from_utf8(&line.text[..10]).unwrap().parse().unwrap();
                assert_eq!(number, next);
                assert!(line.at > last && !line.partial);
                (next, last) = (next + 1, line.at);
            }
        }
    }
    times
}

#[test]
fn fast_output_is_read_once_per_line() {
    let seconds = warren_testkit::soak::count(1, 10) as u64;
    let count = seconds * LINES;
    let scratch = ScratchDir::new();
    let dir = scratch.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    // Room for twice as much, in files of 32 MiB.
    let mut logger = RunningLogger::start_and_wait(&scratch, &dir, 32 << 20, seconds * 2 * 100 / 32 + 2);
    let at_rest = logger.status_kib("VmRSS");
    let out = logger.out.take().unwrap();
    let (fed, opened) = std::thread::scope(|scope| {
        let feeding = scope.spawn(|| feed(out, count));
        let opened = runtime().block_on(follow(&dir, count, count / 5));
        (feeding.join().unwrap(), opened)
    });
    assert_eq!(opened, 5);
    let (processor, memory) = (logger.processor_time(), logger.status_kib("VmRSS"));
    let kept = disk_usage(&dir);
    println!(
        "{count} lines of 1 KiB in {:.2} s ({:.0} MB/s); the logger took {:.2} s of a processor, {at_rest} KiB \
         at rest and {memory} KiB under load; {} MB kept; read by {opened} readers, one after the other",
        fed.as_secs_f64(),
        count as f64 * LINE as f64 / 1e6 / fed.as_secs_f64(),
        processor.as_secs_f64(),
        kept / 1_000_000,
    );
    assert!(memory < 2500, "{memory} KiB");
    logger.err = None;
    assert!(logger.wait().success());
}
