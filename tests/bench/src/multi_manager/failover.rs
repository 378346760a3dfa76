//! The time until writes are acknowledged again after the loss of a leader.

use std::time::{Duration, Instant};

use warren_test_history::workload::{RegisterWorkload, RegisterWorkloadConfig};

use super::ManagerBenchScale;
use super::group::{ManagerProcesses, SOON};
use crate::figures::BenchFigures;

pub fn measure(figures: &mut BenchFigures, scale: ManagerBenchScale) -> anyhow::Result<()> {
    let mut group = ManagerProcesses::start(3)?;
    let plan = RegisterWorkloadConfig {
        managers: group.addresses(),
        registers: 4,
        clients: 4,
        pause: Duration::from_millis(2),
        netns: None,
        seed: 1,
    };
    let registers = RegisterWorkload::start(group.access(), plan);
    let (mut killed, mut stopped) = (Vec::new(), Vec::new());
    for _ in 0..scale.kills {
        let leader = group.wait_all_voters()?;
        let moment = Instant::now();
        group.kill(leader);
        killed.push(registers.wait_for_write(moment, SOON).as_secs_f64());
        group.run_again(leader)?;
    }
    for _ in 0..scale.kills / 2 {
        let leader = group.wait_all_voters()?;
        let moment = Instant::now();
        group.terminate(leader);
        stopped.push(registers.wait_for_write(moment, SOON).as_secs_f64());
        group.run_again(leader)?;
    }
    show(figures, "kill -9 of the leader to the next acknowledged write", &mut killed, ["< 1", "< 2.5"]);
    show(figures, "leader told to stop to the next acknowledged write", &mut stopped, ["< 0.2", "< 0.2"]);
    drop(registers);
    Ok(())
}

/// Median with spread, the 95th percentile and the worst.
fn show(figures: &mut BenchFigures, what: &str, seconds: &mut [f64], [p95, worst]: [&str; 2]) {
    seconds.sort_by(f64::total_cmp);
    figures.add_samples(&format!("{what}, {} times", seconds.len()), seconds, "s", "");
    let last = seconds.len().saturating_sub(1);
    let place = (last as f64 * 0.95).ceil() as usize;
    figures.add(&format!("{what}: p95"), seconds[place.min(last)], "s", p95);
    figures.add(&format!("{what}: worst"), seconds[last], "s", worst);
}
