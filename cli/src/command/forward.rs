//! `warren task port-forward` and `warren service port-forward`: leads local ports to a task.

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use warren_client::{Client, Error, INPUT_CHUNK, ProgramEvent, RunningProgram};
use warren_proto::v1;
use warren_proto::v1::exec_target::Work;

use super::exec::ExecLocation;
use crate::args::{ForwardArgs, GlobalArgs};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client};
use crate::signals::{LocalSignals, killed};

/// Pause after a failure to accept a connection, for example without a free file descriptor.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A local listener.
struct Forward {
    listener: TcpListener,
    address: SocketAddr,
    remote: u16,
}

/// Forwards until a signal.
pub async fn run(
    global: &GlobalArgs,
    location: ExecLocation,
    args: ForwardArgs,
) -> Result<ExitCode, CommandError> {
    let name = match &location {
        ExecLocation::Task(task) => format!("task {task}"),
        ExecLocation::Service { service, slot: Some(slot) } => format!("{service}.{slot}"),
        ExecLocation::Service { service, slot: None } => format!("service {service}"),
    };
    let what = format!("no port of {name} was forwarded");
    let mut forwards = Vec::new();
    for port in &args.ports {
        forwards.push(listen(port.address.to_string(), port.local, port.remote, &what).await?);
    }
    let client = connect(global, &what).await?;
    ensure_exists(&client, &location).await.map_err(|error| from_client(&what, error))?;
    let mut signals =
        LocalSignals::new().map_err(|error| CommandError::new(ExitKind::Failed, what, error, ""))?;
    let mut listeners = JoinSet::new();
    for Forward { listener, address, remote } in forwards {
        println!("forwarding {address} to port {remote} of {name}");
        let target = location.target(Work::Connect(remote.into()));
        listeners.spawn(serve(listener, client.clone(), target));
    }
    Ok(ExitCode::from(killed(signals.ending.next().await)))
}

async fn listen(host: String, local: u16, remote: u16, what: &str) -> Result<Forward, CommandError> {
    let bound = async {
        let listener = TcpListener::bind((host.as_str(), local)).await?;
        let address = listener.local_addr()?;
        Ok::<_, io::Error>(Forward { listener, address, remote })
    };
    bound.await.map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::AddrInUse => ExitKind::Conflict,
            io::ErrorKind::PermissionDenied => ExitKind::Denied,
            _ => ExitKind::Failed,
        };
        let why = format!("cannot listen on {host} port {local}: {error}");
        CommandError::new(kind, what, why, "choose another local port, or leave it out: `:PORT`")
    })
}

async fn ensure_exists(client: &Client, location: &ExecLocation) -> Result<(), Error> {
    match location {
        ExecLocation::Task(task) => client.tasks().get(task).await.map(drop),
        ExecLocation::Service { service, .. } => client.services().get(service).await.map(drop),
    }
}

/// Accepts connections until this is dropped.
async fn serve(listener: TcpListener, client: Client, target: v1::ExecTarget) {
    let mut connections = JoinSet::new();
    loop {
        let (mut stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                eprintln!("a connection was not accepted: {error}");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let (client, target) = (client.clone(), target.clone());
        connections.spawn(async move {
            // Printed before the connection ends: who sees its end may interrupt this command.
            if let Err(error) = pass_on(&client, target, &mut stream).await {
                eprintln!("the connection of {peer} was closed: {error}");
            }
        });
    }
}

/// Passes bytes on in both directions until both have ended.
async fn pass_on(client: &Client, target: v1::ExecTarget, stream: &mut TcpStream) -> Result<(), Error> {
    let RunningProgram { mut input, mut output, .. } = client.tasks().exec(target).await?;
    let _ = stream.set_nodelay(true);
    let (mut read, mut write) = stream.split();
    let sent = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(INPUT_CHUNK);
            match (&mut read).take(INPUT_CHUNK as u64).read_buf(&mut buffer).await {
                Ok(0) => {
                    input.end().await;
                    return std::future::pending().await;
                }
                // The output says why.
                Ok(_) if !input.send(buffer.split().freeze()).await => return std::future::pending().await,
                Ok(_) => {}
                // It was reset; dropping the other direction resets that too.
                Err(_) => return Ok(()),
            }
        }
    };
    let received = async {
        loop {
            let written = match output.next().await? {
                ProgramEvent::Stdout(bytes) => write.write_all(&bytes).await,
                ProgramEvent::OutputEnded => write.shutdown().await,
                ProgramEvent::Stderr(_) => Ok(()),
                ProgramEvent::Exited(_) => return Ok(()),
            };
            if written.is_err() {
                return Ok(());
            }
        }
    };
    tokio::select! {
        ended = sent => ended,
        ended = received => ended,
    }
}
