//! `GET /containers/ID/top`: the processes of a container, as `ps -ef` shows them.

use hyper::StatusCode;
use serde_json::json;
use warren_client::Client;
use warren_proto::v1;

use crate::containers;
use crate::docker_error::DockerError;
use crate::request::DockerRequest;
use crate::response::{Answer, ok, time};
use crate::system::now_ms;

const TITLES: [&str; 8] = ["UID", "PID", "PPID", "C", "STIME", "TTY", "TIME", "CMD"];

pub async fn list(client: &Client, reference: &str, request: &DockerRequest) -> Answer {
    if let Some(options) = request.text("ps_args").filter(|options| *options != "-ef") {
        let message =
            format!("ps_args: {options:?} is not served; leave it out, or run ps with `docker exec`");
        return Err(DockerError::unsupported(&message));
    }
    let task = containers::find(client, reference).await?;
    if !containers::is_running(&task) {
        let message = format!("container {reference} is not running");
        return Err(DockerError::new(StatusCode::CONFLICT, message));
    }
    let processes = client.tasks().processes(&task.id).await?;
    let now = now_ms();
    let rows: Vec<[String; 8]> = processes.into_iter().map(|process| row(process, now)).collect();
    ok(&json!({"Titles": TITLES, "Processes": rows}))
}

fn row(process: v1::ContainerProcess, now: u64) -> [String; 8] {
    let v1::ContainerProcess { pid, parent_pid, uid, started_at, cpu_ms, resident_bytes: _, command } =
        process;
    let lived = now.saturating_sub(started_at).max(1);
    let seconds = cpu_ms / 1000;
    let cpu_time = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    // Hour and minute.
    let start = time(started_at).get(11..16).unwrap_or_default().to_owned();
    let percent = (cpu_ms.saturating_mul(100) / lived).to_string();
    let [pid, parent_pid, uid] = [pid, parent_pid, uid].map(|number| number.to_string());
    [uid, pid, parent_pid, percent, start, "?".to_owned(), cpu_time, command]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_shown_as_ps_does() {
        let process = v1::ContainerProcess {
            pid: 7,
            parent_pid: 5,
            uid: 1000,
            started_at: 1_700_000_000_000,
            cpu_ms: 3_725_000,
            resident_bytes: 1,
            command: "sleep 1".to_owned(),
        };
        let shown = row(process, 1_700_007_450_000);
        assert_eq!(shown, ["1000", "7", "5", "50", "22:13", "?", "01:02:05", "sleep 1"]);
    }
}
