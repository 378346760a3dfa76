//! Compiles the demo's web server statically and packs it as an OCI archive: `demo-image OUTPUT.tar`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use warren_testkit::demo;

const USAGE: &str = "usage: demo-image OUTPUT.tar";

fn main() -> ExitCode {
    match pack() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn pack() -> anyhow::Result<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [output] = arguments.as_slice() else {
        bail!(USAGE);
    };
    if output.as_os_str().as_encoded_bytes().starts_with(b"-") {
        bail!(USAGE);
    }
    let archive = demo::image(demo::REFERENCE)?.oci_archive();
    archive.write(output).with_context(|| format!("cannot write {}", output.display()))?;
    println!("{} {}", archive.reference, archive.manifest_digest.unwrap_or_default());
    Ok(())
}
