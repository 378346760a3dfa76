//! 1 KiB lines at 100 MB/s: every one is found once and in order, also by a reader that is dropped and opened
//! again.

use std::io::{PipeWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use warren_logger::{Entry, Options, Reader};
use warren_testkit::scratch::Scratch;

use crate::shim::{Logger, runtime};

/// With its newline.
const LINE: usize = 1024;
/// Of a second.
const LINES: u64 = 100_000_000 / LINE as u64;

/// Writes numbered lines, one call each, as evenly as the machine can; returns how long it took.
fn feed(mut out: PipeWriter, count: u64) -> Duration {
    let start = Instant::now();
    let mut line = [b'.'; LINE];
    line[LINE - 1] = b'\n';
    for index in 0..count {
        line[..10].copy_from_slice(format!("{index:010}").as_bytes());
        out.write_all(&line).unwrap();
        // Ahead of the pace it waits, by doing nothing: a nap would be longer than a hundred lines take.
        while index % 64 == 0 && start.elapsed().as_micros() < u128::from(index * 1_000_000 / LINES) {
            std::thread::yield_now();
        }
    }
    start.elapsed()
}

/// Follows until `count` lines were read, checks each, and starts anew after every `piece` lines.
async fn follow(dir: &Path, count: u64, piece: u64) -> u32 {
    let (mut next, mut last, mut times) = (0, 0, 0);
    while next < count {
        let options = Options { since: Some(last + 1), follow: true, tail: None };
        let mut reader = Reader::open(dir, options).await.unwrap();
        times += 1;
        let target = (next + piece).min(count);
        while next < target {
            for entry in reader.next().await.unwrap().unwrap() {
                let Entry::Line(line) = entry else {
                    assert!(matches!(entry, Entry::Attempt { .. }), "{entry:?}");
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
fn every_line_of_a_fast_container_is_found_once() {
    let seconds = warren_testkit::soak::count(1, 10) as u64;
    let count = seconds * LINES;
    let scratch = Scratch::new();
    let dir = scratch.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    // Room for twice as much, in files of 32 MiB.
    let mut logger = Logger::ready(&scratch, &dir, 32 << 20, seconds * 2 * 100 / 32 + 2);
    let at_rest = logger.kibibytes("VmRSS");
    let out = logger.out.take().unwrap();
    let (fed, opened) = std::thread::scope(|scope| {
        let feeding = scope.spawn(|| feed(out, count));
        let opened = runtime().block_on(follow(&dir, count, count / 5));
        (feeding.join().unwrap(), opened)
    });
    assert_eq!(opened, 5);
    let (processor, memory) = (logger.processor_time(), logger.kibibytes("VmRSS"));
    let kept = warren_logger::retained(&dir).unwrap();
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
    assert!(logger.ended().success());
}
