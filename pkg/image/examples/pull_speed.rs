//! Compares the duration of a pull by this crate with `ctr images pull`, alternating, each into its own
//! empty store: 100 MB in five layers, from a registry on loopback.
//!
//! `cargo run --release -p warren-image --example pull_speed -- [ROUNDS]`

use std::error::Error;
use std::time::{Duration, Instant};

use warren_image::{ContainerdConnection, ImageStore, Reference};
use warren_testkit::containerd::TestContainerd;
use warren_testkit::image::{ImageLayer, TestImage};
use warren_testkit::registry::TestRegistry;

const LAYERS: u64 = 5;
const LAYER_BYTES: usize = 20_000_000;
const FILE_BYTES: usize = 200_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(10), |text| text.parse())?;
    let registry = TestRegistry::start();
    let archive = image().oci_archive();
    println!("{} MB packed", archive.bytes.len() / 1_000_000);
    let name = registry.push("speed", "1", &archive);
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        let (own, other) = match round % 2 {
            0 => (by_us(&name).await?, by_ctr(&name)),
            _ => {
                let other = by_ctr(&name);
                (by_us(&name).await?, other)
            }
        };
        // The first pair warms the page cache.
        if round > 0 {
            println!("ours {own:?}, ctr {other:?}");
            ours.push(own.as_secs_f64());
            theirs.push(other.as_secs_f64());
            ratios.push(own.as_secs_f64() / other.as_secs_f64());
        }
    }
    println!("medians of {rounds}: ours {:.2} s, ctr {:.2} s", median(ours), median(theirs));
    println!("ratio, pair by pair: {:.2}", median(ratios));
    Ok(())
}

/// Files that compress to about two thirds.
fn image() -> TestImage {
    let mut state = 1u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Five random bits in each byte.
        (state >> 59) as u8 + b'A'
    };
    (0..LAYERS).fold(TestImage::new("warren.local/speed:1").arguments(["/x"]), |image, layer| {
        let files = 0..LAYER_BYTES / FILE_BYTES;
        image.layer(files.fold(ImageLayer::new(), |all, file| {
            let content: Vec<u8> = (0..FILE_BYTES).map(|_| byte()).collect();
            all.file(&format!("/layer{layer}/file{file}"), content, 0o644)
        }))
    })
}

async fn by_us(name: &str) -> Result<Duration, Box<dyn Error>> {
    let containerd = TestContainerd::start();
    let begun = Instant::now();
    let images = ImageStore::new(ContainerdConnection::new(containerd.socket(), "speed")?, "overlayfs");
    images.pull(&Reference::parse(name)?, None).outcome().await?;
    Ok(begun.elapsed())
}

fn by_ctr(name: &str) -> Duration {
    let containerd = TestContainerd::start();
    let begun = Instant::now();
    containerd.ctr(["--namespace", "speed", "images", "pull", "--plain-http", name]);
    begun.elapsed()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
