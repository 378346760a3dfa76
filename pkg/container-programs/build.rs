//! Builds the four embedded programs: static, without dependencies, by one call of `rustc` each.
//!
//! They are not cargo binaries, because `crt-static` and the relocation model are properties of a whole
//! program: cargo could only set them for every crate of the workspace at once.

use std::env;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// Sources of the programs; changes of other library files must not rebuild them.
const SOURCES: [&str; 5] = [
    "src/program",
    "src/plan.rs",
    "../container-logs/src/record.rs",
    "../container-logs/src/segment.rs",
    "../container-logs/src/writer.rs",
];

fn main() {
    let out = PathBuf::from(variable("OUT_DIR"));
    for program in ["logger", "init", "exec", "namespaces"] {
        let path = out.join(format!("warren-{program}"));
        compile(program, &path);
        pack(&path);
    }
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}

/// Compiles `src/program/{program}.rs` to `into`.
fn compile(program: &str, into: &Path) {
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition", "2024", "--crate-type", "bin", "--crate-name"]).arg(format!("warren_{program}"));
    rustc.arg("--target").arg(variable("TARGET"));
    rustc.args(["-C", "opt-level=s", "-C", "codegen-units=1", "-C", "lto=fat", "-C", "panic=abort"]);
    // Position-dependent, so that start-up needs no relocations, which would turn shared pages into private
    // ones.
    rustc.args(["-C", "relocation-model=static", "-C", "target-feature=+crt-static", "-C", "strip=symbols"]);
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut setting = OsString::from("linker=");
        setting.push(linker);
        rustc.arg("-C").arg(setting);
    }
    // Equal sources produce equal programs in any checkout, so that a node need not write them again.
    let mut remap = variable("CARGO_MANIFEST_DIR");
    remap.push("=warren-container-programs");
    rustc.arg("--remap-path-prefix").arg(remap);
    // Shorter names in the program.
    rustc.args(["--remap-path-prefix", "src/program/../../../container-logs/src=src"]);
    rustc.arg("-o").arg(into).arg(format!("src/program/{program}.rs"));
    let status = rustc.status().expect("cargo names a compiler that can be started");
    assert!(
        status.success(),
        "cannot compile src/program/{program}.rs for {:?} ({status}); a static program needs the C library's \
         archive (libc.a), and for another target its linker in the cargo setting `linker`",
        variable("TARGET")
    );
}

/// Writes a compressed copy of the program, and its digest.
fn pack(path: &Path) {
    let program = std::fs::read(path).expect("the compiler has written it");
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(&program).expect("memory takes it");
    let packed = packed.finish().expect("memory takes it");
    let written = std::fs::write(path.with_extension("zlib"), packed);
    written
        .and_then(|()| std::fs::write(path.with_extension("sha256"), Sha256::digest(&program)))
        .expect("there is room");
}

/// A variable that cargo sets for every build script.
fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name} for build scripts"))
}
