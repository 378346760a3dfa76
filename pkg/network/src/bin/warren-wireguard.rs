//! The WireGuard process for the tests of this crate; on nodes it is the program `warren`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    warren_wireguard::run_command(&arguments).unwrap_or(ExitCode::from(2))
}
