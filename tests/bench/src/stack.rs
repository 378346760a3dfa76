//! A stack on a real node: the time of its first deployment compared to the same containers alone, and the time of a
//! deployment that changes nothing.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::Context;
use warren_testkit::image::TestImage;
use warren_testkit::netns::NetworkSwitch;
use warren_testkit::node::{LabNode, NodeOptions};
use warren_testkit::tool;

use crate::figures::BenchFigures;

const IMAGE: &str = "warren.local/bench:1";
const REPLICAS: usize = 2;
/// Services of a first deployment.
const SERVICES: usize = 10;
/// Pairs of deployments.
const ROUNDS: usize = 7;
/// Services of the deployment that changes nothing.
const UNCHANGED_SERVICES: usize = 100;
/// Deployments that change nothing.
const REPETITIONS: usize = 10;

pub fn measure(figures: &mut BenchFigures) -> anyhow::Result<()> {
    println!("\na stack on one node, real containers");
    let lab = NetworkSwitch::new();
    let node = LabNode::start(lab.add_host(), NodeOptions::default());
    let archive = node.scratch().join("bench.tar");
    TestImage::busybox(IMAGE).arguments(["sleep", "100000"]).oci_archive().write(&archive)?;
    let archive = archive.to_str().context("a path in UTF-8")?;
    node.warren().run_ok(&["image", "import", archive]);
    node.ctr(["--namespace", "bench", "images", "import", archive]);
    first_deployments(figures, &node)?;
    unchanged_deployments(figures, &node)
}

/// A Compose file whose services are done as soon as they run, as `ctr run` is.
fn compose_file(node: &LabNode, services: usize) -> anyhow::Result<String> {
    let mut text = String::from("services:\n");
    for number in 0..services {
        writeln!(text, "  s{number}:")?;
        writeln!(text, "    image: {IMAGE}\n    stop_grace_period: 0s")?;
        writeln!(text, "    deploy: {{replicas: {REPLICAS}, update_config: {{monitor: 0s}}}}")?;
    }
    let path = node.scratch().join(format!("{services}.yaml"));
    std::fs::write(&path, text)?;
    Ok(path.to_str().context("a path in UTF-8")?.to_owned())
}

/// Pairs of `warren deploy` and as many `ctr run -d`, one after the other and one per CPU at a time.
fn first_deployments(figures: &mut BenchFigures, node: &LabNode) -> anyhow::Result<()> {
    let file = compose_file(node, SERVICES)?;
    let warren = node.warren();
    let containers: Vec<String> = (0..SERVICES * REPLICAS).map(|number| format!("c{number}")).collect();
    let run = |name: &str| {
        node.ctr(["--namespace", "bench", "run", "--detach", "--null-io", IMAGE, name, "sleep", "100000"]);
    };
    let mut seconds: [Vec<f64>; 3] = Default::default();
    let mut ratios: [Vec<f64>; 2] = Default::default();
    let parallel = std::thread::available_parallelism()?.get();
    for round in 0..=ROUNDS {
        let mut taken = [0.0; 3];
        for (place, at_a_time) in [(0, 1), (1, parallel)] {
            let start = Instant::now();
            std::thread::scope(|scope| {
                for share in containers.chunks(containers.len().div_ceil(at_a_time)) {
                    scope.spawn(move || share.iter().for_each(|name| run(name)));
                }
            });
            taken[place] = start.elapsed().as_secs_f64();
            for name in &containers {
                node.ctr(["--namespace", "bench", "task", "delete", "--force", name]);
                node.ctr(["--namespace", "bench", "container", "delete", name]);
            }
        }
        let start = Instant::now();
        warren.run_ok(&["deploy", "-c", &file, "bench"]);
        taken[2] = start.elapsed().as_secs_f64();
        warren.run_ok(&["stack", "rm", "bench"]);
        // The first pair warms caches.
        if round > 0 {
            (0..3).for_each(|place| seconds[place].push(taken[place]));
            (0..2).for_each(|place| ratios[place].push(taken[2] / taken[place]));
        }
    }
    let containers = containers.len();
    figures.add_samples(&format!("{containers} x ctr run -d, one at a time"), &seconds[0], "s", "");
    figures.add_samples(&format!("{containers} x ctr run -d, one per CPU at a time"), &seconds[1], "s", "");
    figures.add_samples(&format!("first warren deploy, {containers} tasks"), &seconds[2], "s", "");
    figures.add_samples("ratio to one at a time, pair by pair", &ratios[0], "x", "<= 1.2");
    figures.add_samples("ratio to one per CPU at a time, pair by pair", &ratios[1], "x", "<= 1.2");
    Ok(())
}

/// Deployments of a file whose services run already.
fn unchanged_deployments(figures: &mut BenchFigures, node: &LabNode) -> anyhow::Result<()> {
    let file = compose_file(node, UNCHANGED_SERVICES)?;
    let deploy = || node.warren().command(&["deploy", "-c", &file, "unchanged"]);
    tool::stdout(deploy(), 10 * tool::DEADLINE).map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut seconds = Vec::new();
    for _ in 0..REPETITIONS {
        let start = Instant::now();
        tool::stdout(deploy(), tool::DEADLINE).map_err(|error| anyhow::anyhow!("{error}"))?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    let what = format!("warren deploy of {UNCHANGED_SERVICES} unchanged services x {REPLICAS}");
    figures.add_samples(&what, &seconds, "s", "< 0.5");
    Ok(())
}
