use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

async fn assert_removed(path: &Path) {
    let gone = async {
        while path.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, gone).await.expect("the socket's file is removed");
}

#[tokio::test]
async fn the_local_socket_names_the_process_that_dialled() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("warren.sock");
    // The second turn replaces nothing, since the first removed its file.
    for _ in 0..2 {
        let mut incoming = serve_local(LocalListener::bind(&path, None).unwrap());
        assert_eq!(mode(&path), 0o600);
        let mut client = UnixStream::connect(&path).await.unwrap();
        let mut server = next(&mut incoming).await;
        client.write_all(b"x").await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'x');
        server.write_all(b"y").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'y');
        let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        assert_eq!(server.peer(), &Peer::Local { uid, gid });
        assert_eq!(server.peer().to_string(), format!("uid {uid}"));
        drop(incoming);
        assert_removed(&path).await;
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn only_unserved_socket_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("warren.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    let first = LocalListener::bind(&path, None).unwrap();
    assert_eq!((first.path(), mode(&path)), (path.as_path(), 0o600));
    assert!(matches!(LocalListener::bind(&path, None), Err(LocalSocketError::InUse(at)) if at == path));
    drop(first);
    assert!(!path.exists());

    fs::write(&path, "precious").unwrap();
    assert!(matches!(LocalListener::bind(&path, None), Err(LocalSocketError::NotASocket(_))));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    let nowhere = dir.path().join("no/such.sock");
    assert!(matches!(LocalListener::bind(&nowhere, None), Err(LocalSocketError::Open { .. })));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_local_socket_can_be_shared_with_a_group_that_exists() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("warren.sock");
    let refused = LocalListener::bind(&path, Some("no-such-group-here")).unwrap_err();
    assert!(matches!(refused, LocalSocketError::UnknownGroup(name) if name == "no-such-group-here"));
    assert!(!path.exists());
    let own = nix::unistd::Group::from_gid(nix::unistd::getegid()).unwrap().unwrap();
    let _listener = LocalListener::bind(&path, Some(&own.name)).unwrap();
    assert_eq!((mode(&path), fs::metadata(&path).unwrap().gid()), (0o660, own.gid.as_raw()));
}
