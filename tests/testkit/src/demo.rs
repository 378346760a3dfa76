//! The demo's web server and its image, used by `make run` and by tests of published ports.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::image::{StaticCheckError, TestImage};
use crate::tool;

/// The name under which the demo's image is imported.
pub const REFERENCE: &str = "warren.local/demo:1";

/// The port of the server inside its container, unless `PORT` is set.
pub const PORT: u16 = 80;

/// The compiler needs about a second; a busy machine gets more.
const COMPILE_DEADLINE: Duration = Duration::from_secs(300);

/// Why the demo image could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The compiler failed.
    #[error("cannot compile {source_file}: {source}")]
    Compile {
        /// The server's source.
        source_file: String,
        /// The compiler's output.
        source: tool::Error,
    },
    /// A file or directory could not be read or written.
    #[error("cannot read the compiled server: {0}")]
    Read(#[from] std::io::Error),
    /// The program would need the machine's libraries.
    #[error("the compiled server cannot run alone: {0}")]
    NotStatic(#[from] StaticCheckError),
}

/// The server's source file: one file, the standard library only.
#[must_use]
pub fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/demo/server.rs")
}

/// Compiles the server statically with the `rustc` that `RUSTC` names (cargo sets it), or the one on the
/// path. Cargo's target directory is not used: crt-static is a property of the whole program, and with cargo
/// it would rebuild every dependency of the workspace.
pub fn compile() -> Result<Vec<u8>, Error> {
    let directory = tempfile::tempdir()?;
    let program = directory.path().join("server");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition", "2024", "--crate-name", "server", "-C", "opt-level=2", "-C", "panic=abort"]);
    rustc.args(["-C", "strip=symbols", "-C", "target-feature=+crt-static", "-C", "relocation-model=static"]);
    // Paths of this machine would make the digest differ between two checkouts of the same source.
    rustc
        .arg("--remap-path-prefix")
        .arg(format!("{}=demo", source().parent().unwrap_or(Path::new("/")).display()));
    rustc.arg("-o").arg(&program).arg(source());
    let source_file = source().display().to_string();
    tool::stdout(rustc, COMPILE_DEADLINE).map_err(|source| Error::Compile { source_file, source })?;
    Ok(std::fs::read(&program)?)
}

/// The demo's image under `reference`, freshly compiled.
pub fn image(reference: &str) -> Result<TestImage, Error> {
    Ok(TestImage::of_executable(reference, "server", compile()?)?.exposed_port(&format!("{PORT}/tcp")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::containerd::TestContainerd;
    use crate::process::ChildProcess;
    use crate::scratch::{self, ScratchDir};
    use crate::wait::eventually;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    const SOON: Duration = Duration::from_secs(60);

    fn get(port: u16, path: &str) -> Result<String, String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(SOON)).map_err(|error| error.to_string())?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(|error| error.to_string())?;
        Ok(answer)
    }

    #[test]
    fn the_server_answers_counts_and_ends_at_sigterm() {
        let scratch = ScratchDir::new();
        let program = scratch.path().join("server");
        scratch::install(&program, &compile().unwrap());
        let port = crate::ports::allocate();
        let mut command = Command::new(&program);
        command.env_clear().env("PORT", port.to_string()).env("WARREN_SERVICE", "a<b");
        let mut server = ChildProcess::spawn("server", command, &scratch.path().join("server.log"));
        let first = eventually(SOON, "the first page", || get(port, "/"));
        assert!(first.starts_with("HTTP/1.1 200 OK\r\n"), "{first}");
        assert!(first.contains("WARREN_SERVICE") && first.contains("a&lt;b"), "{first}");
        assert!(first.contains("request 1 ") && get(port, "/").unwrap().contains("request 2 "), "{first}");
        assert!(get(port, "/healthz").unwrap().ends_with("\r\n\r\nok\n"));
        assert!(get(port, "/nothing").unwrap().starts_with("HTTP/1.1 404 "));
        assert!(server.log().contains("GET /healthz 200"), "{}", server.log());
        assert!(server.terminate(SOON).success());
    }

    /// The kernel ignores SIGTERM for the first process of a pid namespace that has no handler for it.
    #[test]
    fn the_first_process_of_a_container_ends_at_sigterm() {
        let (containerd, scratch) = (TestContainerd::start(), ScratchDir::new());
        let archive = scratch.path().join("demo.tar");
        image(REFERENCE).unwrap().oci_archive().write(&archive).unwrap();
        containerd.ctr(["images", "import", archive.to_str().unwrap()]);
        containerd.ctr(["run", "--detach", "--null-io", REFERENCE, "demo-server"]);
        let tasks = || containerd.ctr(["tasks", "list"]);
        eventually(SOON, "the server to listen", || {
            let pid = tasks().split_whitespace().nth(4).map(str::to_owned).ok_or("no task")?;
            let sockets = std::fs::read_to_string(format!("/proc/{pid}/net/tcp"));
            let sockets = sockets.map_err(|error| error.to_string())?;
            // Port 80 in state LISTEN, as the kernel writes them.
            if sockets.contains(":0050 00000000:0000 0A") { Ok(()) } else { Err(sockets) }
        });
        containerd.ctr(["tasks", "kill", "--signal", "SIGTERM", "demo-server"]);
        eventually(SOON, "the server's end", || {
            let found = tasks();
            if found.contains("STOPPED") { Ok(()) } else { Err(found) }
        });
    }

    #[test]
    fn the_image_is_the_same_twice() {
        let digest = || image(REFERENCE).unwrap().oci_archive().manifest_digest;
        assert_eq!(digest(), digest());
    }
}
