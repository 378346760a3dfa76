//! warren-namespaces: makes the user namespace of a container, and a network namespace that belongs to it.
//!
//! ```text
//! warren-namespaces        with pipes as its standard input and output
//! ```
//!
//! It makes a user namespace and writes a byte. The agent gives the namespace its ids, and writes a byte. Then it makes
//! a network namespace, writes another byte, and waits for the end of its input; the agent binds both to files
//! meanwhile. What fails is in its standard error.
//!
//! Only a process with one thread can make a user namespace, so the agent cannot. It needs no root of its own: it is
//! started by the agent, and never enters a container.

use std::ffi::c_int;
use std::io::{Error, Read, Write, stdin, stdout};
use std::process::ExitCode;

const NEW_USER: c_int = 0x1000_0000;
const NEW_NETWORK: c_int = 0x4000_0000;

#[allow(unsafe_code)] // A foreign function is unsafe to call.
fn unshare(kind: c_int) -> Result<(), Error> {
    unsafe extern "C" {
        fn unshare(flags: c_int) -> c_int;
    }
    // SAFETY: it takes a number only.
    match unsafe { unshare(kind) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words == ["--version"] {
        println!("warren-namespaces 1");
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err((what, error)) => {
            eprintln!("cannot {what}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns what failed, and why.
fn run() -> Result<(), (&'static str, Error)> {
    unshare(NEW_USER).map_err(|error| ("make a user namespace", error))?;
    report()?;
    let mut answer = [0];
    if stdin().read(&mut answer).map_err(|error| ("read its input", error))? == 0 {
        return Ok(());
    }
    unshare(NEW_NETWORK).map_err(|error| ("make a network namespace", error))?;
    report()?;
    stdin().read_to_end(&mut Vec::new()).map_err(|error| ("read its input", error))?;
    Ok(())
}

fn report() -> Result<(), (&'static str, Error)> {
    let mut output = stdout();
    output.write_all(b".").and_then(|()| output.flush()).map_err(|error| ("write its output", error))
}
