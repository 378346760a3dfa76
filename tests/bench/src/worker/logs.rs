//! A container writes lines of 1 KiB at 100 MB/s while its agent is killed: every line is stored once, in
//! order.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use warren_testkit::image::TestImage;
use warren_testkit::tool;
use warren_testkit::wait::try_eventually;

use super::WorkerBenchScale;
use super::fixture::{SOON, WorkerBench};
use super::processes::{self, LOGGER};
use crate::figures::BenchFigures;

const IMAGE: &str = "warren.local/flood:1";
/// Includes the newline.
const LINE: u64 = 1024;
/// The target rate of the container in bytes per second.
const RATE: u64 = 100_000_000;

pub fn measure(
    figures: &mut BenchFigures,
    world: &mut WorkerBench,
    scale: WorkerBenchScale,
) -> anyhow::Result<()> {
    world.import(&TestImage::of_executable(IMAGE, "flood", compile(world.worker.scratch())?)?)?;
    let lines = RATE * scale.writing.as_secs() / LINE;
    let volume = lines * LINE;
    // Room for two files above the volume and the prefix of each line.
    let (size, files) = (128 << 20, (volume / (128 << 20) + 4).to_string());
    let words = ["service", "create", "flood", "--image", IMAGE, "--stop-grace", "0s"];
    let limits = ["--log-max-size", &format!("{size}"), "--log-files", &files];
    let what = ["--arg", &lines.to_string(), "--arg", &RATE.to_string()];
    world.warren().run_ok(&[&words[..], &limits, &what].concat());
    let (task, pid) = world.only_task("flood")?;
    let loggers = processes::of_kind(&world.worker, LOGGER);
    ensure!(loggers.len() == 1, "one logger for one container, found {loggers:?}");
    let directory = world.directory(&task);
    let until = |share: u64| {
        try_eventually(SOON, "a part of the volume", || {
            let written = bytes_in(&directory).map_err(|error| error.to_string())?;
            if written >= volume / 100 * share { Ok(written) } else { Err(format!("{written} of {volume}")) }
        })
    };
    until(40)?;
    world.worker.kill();
    let at_kill = bytes_in(&directory)?;
    ensure!(at_kill < volume, "the agent was killed only when all was written");
    let at_restart = until((at_kill * 100 / volume + 15).min(90))?;
    world.worker.run_again();
    world.worker.wait_ready();
    let output = try_eventually(2 * SOON, "the last line of the container", || {
        let ran = world.warren().run(&["task", "logs", &task, "--tail", "1"]);
        if ran.stdout.contains(" lines took ") { Ok(ran.stdout) } else { Err(ran.to_string()) }
    })?;
    let cpu = processes::cpu_of_all(&loggers)?;
    let took =
        output.trim().strip_prefix(&format!("{lines} lines took ")).context("the writer's last line")?;
    let took = took.trim_end_matches(" us").parse::<f64>()? / 1e6;
    ensure!(world.only_task("flood")? == (task.clone(), pid), "the container got another process");
    let start = Instant::now();
    count(world, &task, lines)?;
    let read = start.elapsed().as_secs_f64();
    let megabytes = volume as f64 / 1e6;
    figures.add(
        "lines of 1 KiB, agent killed meanwhile: found once and in order",
        lines as f64,
        "lines",
        "all",
    );
    let unread = (at_restart - at_kill) as f64 / 1e6;
    figures.add("of them written while there was no agent, at least", unread, "MB", "");
    figures.add("reached by the container", megabytes / took, "MB/s", "100");
    figures.add("CPU of the logger, per second of writing", cpu / took * 100.0, "% of core", "");
    figures.add("CPU of the logger, per 100 MB", cpu / megabytes * 100.0, "s", "");
    figures.add("read by `warren task logs`", megabytes / read, "MB/s", "");
    Ok(())
}

/// The writer as a static program.
fn compile(directory: &Path) -> anyhow::Result<Vec<u8>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/flood.rs");
    let program = directory.join("flood");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition", "2024", "-C", "opt-level=2", "-C", "panic=abort", "-C", "strip=symbols"]);
    rustc.args(["-C", "target-feature=+crt-static", "-C", "relocation-model=static", "-o"]);
    rustc.arg(&program).arg(&source);
    tool::stdout(rustc, 2 * SOON)?;
    Ok(std::fs::read(program)?)
}

/// The size of the files below `directory`.
fn bytes_in(directory: &Path) -> std::io::Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let about = entry.metadata()?;
        sum += if about.is_dir() { bytes_in(&entry.path())? } else { about.len() };
    }
    Ok(sum)
}

/// Reads all output of the task, which is `lines` numbered lines and one more.
fn count(world: &WorkerBench, task: &str, lines: u64) -> anyhow::Result<()> {
    let mut command = world.warren().command(&["task", "logs", task]);
    let mut reading = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let output = reading.stdout.take().context("its output was asked for")?;
    let counted = count_lines(BufReader::with_capacity(1 << 20, output), lines);
    if counted.is_err() {
        // It does not write any more; it may even have ended.
        let _ = reading.kill();
    }
    let status = reading.wait()?;
    counted?;
    ensure!(status.success(), "task logs ended with {status}");
    Ok(())
}

fn count_lines(mut output: impl BufRead, lines: u64) -> anyhow::Result<()> {
    let mut line = Vec::new();
    for expected in 1..=lines {
        line.clear();
        output.read_until(b'\n', &mut line)?;
        let number = line.get(..12).and_then(|number| std::str::from_utf8(number).ok());
        if number.and_then(|number| number.parse().ok()) != Some(expected) || line.len() as u64 != LINE {
            let found = String::from_utf8_lossy(&line[..line.len().min(40)]).into_owned();
            bail!("line {expected} of {lines} is missing, found {:?} of {} bytes", found, line.len());
        }
    }
    let mut rest = String::new();
    output.read_to_string(&mut rest)?;
    ensure!(rest.lines().count() == 1, "one line after all others, found {rest:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(numbers: &[u64]) -> Vec<u8> {
        let line = |number: &u64| format!("{number:012} {:x<width$}\n", "", width = LINE as usize - 14);
        let text: String = numbers.iter().map(line).collect();
        format!("{text}the end\n").into_bytes()
    }

    #[test]
    fn missing_duplicate_and_swapped_lines_are_reported() {
        assert!(count_lines(&written(&[1, 2, 3])[..], 3).is_ok());
        for wrong in [&[1, 3][..], &[1, 2, 2], &[1, 3, 2], &[1, 2], &[1, 2, 3, 4]] {
            assert!(count_lines(&written(wrong)[..], 3).is_err(), "{wrong:?}");
        }
        let mut cut = written(&[1, 2, 3]);
        cut.remove(500);
        assert!(count_lines(&cut[..], 3).is_err());
    }
}
