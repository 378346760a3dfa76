//! Docker's API on the socket of a real manager: raw HTTP, and the CLI of Docker.

mod access;
mod cli;
mod containers;
mod docker_py;
mod http;
mod one_off;
mod prometheus;
mod recorded_clients;

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use warren_proto::v1;
use warren_proto::v1::exec_task::Work;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::stream_frame::Frame;

use crate::fixture::ManagerFixture;
use crate::worker::{DIGEST, ScriptedStream, ScriptedWorker};

/// Runs `cat`, which ends with the code 7, `sleep`, which writes nothing, and no other program. It has the file
/// `/etc/motd`, and takes the archive of that.
async fn exec(mut stream: ScriptedStream, work: Work) {
    let command = match &work {
        Work::Program(program) => program.command.first().map_or("", String::as_str),
        _ => "",
    };
    if matches!(work, Work::Program(_)) && !matches!(command, "cat" | "sleep") {
        let reason = v1::ExecFailureReason::CommandNotFound.into();
        let message = format!("{command} is not in the image");
        stream.send(Frame::ExecFailure(v1::ExecFailure { reason, field: String::new(), message })).await;
        return stream.wait_closed().await;
    }
    if matches!(&work, Work::ReadFiles(read) if read.path != "/etc/motd") {
        let reason = v1::ExecFailureReason::FileNotFound.into();
        let message = "no such file".to_owned();
        stream.send(Frame::ExecFailure(v1::ExecFailure { reason, field: String::new(), message })).await;
        return stream.wait_closed().await;
    }
    stream.send(Frame::ProgramStarted(v1::StreamDone {})).await;
    let code = match work {
        Work::Program(_) if command == "sleep" => return stream.wait_closed().await,
        Work::Program(program) => {
            loop {
                let received = if program.input { stream.receive().await } else { Ok(None) };
                match received {
                    Ok(Some(Frame::Data(bytes))) => stream.send(Frame::Data(bytes)).await,
                    Ok(Some(Frame::Resize(v1::TerminalSize { columns, rows }))) => {
                        stream.send(Frame::Data(format!("{columns}x{rows}").into())).await;
                    }
                    _ => break,
                }
            }
            stream.send(Frame::StderrData("the input ended".into())).await;
            7
        }
        Work::ReadFiles(_) => {
            stream.send(Frame::Data(motd().into())).await;
            0
        }
        Work::WriteFiles(_) => {
            let is_whole = stream.archive().await.is_some_and(|archive| archive == motd());
            if !is_whole {
                let reason = v1::ExecFailureReason::CopyFailed.into();
                let (field, message) = (String::new(), "this is no archive".to_owned());
                stream.send(Frame::ExecFailure(v1::ExecFailure { reason, field, message })).await;
                return stream.wait_closed().await;
            }
            0
        }
        Work::Connect(_) => 1,
        Work::Signal(_) => 0,
        Work::Attach(_) => {
            stream.send(Frame::AttachedAt(1_700_000_000_000)).await;
            0
        }
        Work::ListProcesses(_) => {
            stream.send(Frame::Processes(v1::ProcessList { processes: vec![process()] })).await;
            0
        }
    };
    stream.send(Frame::ExitCode(code)).await;
    stream.wait_closed().await;
}

/// The only process of each task.
fn process() -> v1::ContainerProcess {
    v1::ContainerProcess {
        pid: 71,
        parent_pid: 70,
        uid: 33,
        started_at: 1_700_000_000_000,
        cpu_ms: 61_000,
        resident_bytes: 4096,
        command: "nginx: master process".to_owned(),
    }
}

/// The image of the worker.
fn image() -> v1::ImageInfo {
    let reference = "docker.io/library/nginx:1.27".to_owned();
    v1::ImageInfo { reference, digest: DIGEST.into(), size_bytes: 4096, ..Default::default() }
}

fn imported() -> v1::ImportedImageFrame {
    let v1::ImageInfo { reference, digest, size_bytes, .. } = image();
    v1::ImportedImageFrame { reference, digest, size_bytes }
}

/// An archive with the file `motd`.
fn motd() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(5);
    archive.append_data(&mut header, "motd", &b"hello"[..]).unwrap();
    archive.into_inner().unwrap()
}

/// A worker that runs what it is assigned, whose tasks have written one line each, and which has no volumes. It ends
/// with the test.
async fn run_worker(world: &ManagerFixture) -> JoinHandle<()> {
    let mut worker = ScriptedWorker::dial(world).await;
    tokio::spawn(async move {
        loop {
            worker.apply_assignment().await;
            let asked = timeout(Duration::from_millis(20), worker.next_stream_request()).await;
            let Ok(v1::OpenStream { stream_id, purpose, .. }) = asked else { continue };
            let mut stream = worker.attach_to(stream_id).await;
            match &purpose {
                Some(Purpose::ListImages(_) | Purpose::PruneImages(_)) => {
                    stream.send(Frame::Images(v1::ImageList { images: vec![image()] })).await;
                }
                Some(Purpose::PullImage(pull)) if pull.reference.ends_with("missing:1") => {
                    stream.send(Frame::Progress("1 of 2 layers".into())).await;
                    stream.send(Frame::Error("the registry does not know it".into())).await;
                    tokio::spawn(stream.wait_closed());
                    continue;
                }
                Some(Purpose::PullImage(_)) => stream.send(Frame::Imported(imported())).await,
                Some(Purpose::ImportImage(_)) if stream.archive().await == Some(motd()) => {
                    stream.send(Frame::Imported(imported())).await;
                }
                _ => {}
            }
            if let Some(Purpose::ExecTask(v1::ExecTask { work: Some(work), .. })) = purpose {
                tokio::spawn(exec(stream, work));
                continue;
            }
            if let Some(Purpose::ReadLogs(_)) = purpose {
                let line = v1::LogLine {
                    at_ns: 1_700_000_000_000_000_000,
                    stream: v1::LogStream::Out.into(),
                    text: b"hello from a task".to_vec().into(),
                    partial: false,
                };
                stream.send(Frame::Lines(v1::LogLines { lines: vec![line] })).await;
            }
            stream.send(Frame::Done(v1::StreamDone {})).await;
            // The manager may read another one first.
            tokio::spawn(stream.wait_closed());
        }
    })
}
