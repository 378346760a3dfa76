//! The container program of the log bench: `flood LINES BYTES_PER_SECOND` writes numbered lines of 1 KiB at
//! that rate, then one line with the elapsed time, then waits for its termination. Standard library only,
//! because its image contains nothing else.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Includes the newline.
const LINE: usize = 1024;
/// The capacity of a pipe: the number of lines per write.
const BATCH: u64 = 64;

fn main() -> io::Result<()> {
    let number = |place: usize| std::env::args().nth(place).and_then(|keyword| keyword.parse::<u64>().ok());
    let (Some(lines), Some(rate)) = (number(1), number(2)) else {
        return Err(io::Error::other("usage: flood LINES BYTES_PER_SECOND"));
    };
    // Not through `Stdout`, which searches all output for newlines.
    let mut out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let mut batch = Vec::with_capacity(LINE * 64);
    let start = Instant::now();
    let mut next = 1;
    while next <= lines {
        batch.clear();
        for line in next..=lines.min(next + BATCH - 1) {
            writeln!(batch, "{line:012} {:x<width$}", "", width = LINE - 14)?;
        }
        out.write_all(&batch)?;
        next += BATCH;
        let due = Duration::from_secs_f64((next - 1) as f64 * LINE as f64 / rate as f64);
        if let Some(ahead) = due.checked_sub(start.elapsed()) {
            std::thread::sleep(ahead);
        }
    }
    writeln!(out, "{lines} lines took {} us", start.elapsed().as_micros())?;
    loop {
        std::thread::park();
    }
}
