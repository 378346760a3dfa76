//! Reports to the service manager that a program is ready (sd_notify(3)).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Reports that this program serves, if systemd started it and waits for that. A second report changes nothing.
pub fn notify_ready() {
    if let Err(error) = notify(std::env::var_os("NOTIFY_SOCKET")) {
        tracing::warn!(%error, "systemd was not told that this program is ready");
    }
}

fn notify(socket: Option<OsString>) -> io::Result<()> {
    let Some(socket) = socket else { return Ok(()) };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address(&socket)?).map(drop)
}

/// The name of an abstract socket begins with `@`.
fn address(socket: &OsStr) -> io::Result<SocketAddr> {
    match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(socket),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_is_reported_to_either_kind_of_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify").into_os_string();
        let name = OsString::from(format!("@{}", path.to_str().unwrap()));
        for socket in [path, name] {
            let manager = UnixDatagram::bind_addr(&address(&socket).unwrap()).unwrap();
            for _ in 0..2 {
                notify(Some(socket.clone())).unwrap();
                let mut text = [0; 16];
                let length = manager.recv(&mut text).unwrap();
                assert_eq!(&text[..length], b"READY=1");
            }
            // A child that another test has just forked may still have the socket.
            manager.shutdown(std::net::Shutdown::Both).unwrap();
            drop(manager);
            notify(Some(socket)).unwrap_err();
        }
        notify(None).unwrap();
    }
}
