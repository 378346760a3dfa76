//! `/containers/ID/stats`.

use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::time::sleep;
use warren_client::Client;
use warren_proto::v1;

use crate::containers::{find, is_running};
use crate::docker_error::DockerError;
use crate::request::DockerRequest;
use crate::response::{self, Answer, BodyError, ok, time};
use crate::system::now_ms;
use crate::task_ids::docker_id;
use crate::{one_off, tasks};

/// Time between two statistics.
const STATS_INTERVAL: Duration = Duration::from_secs(1);
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// `GET /containers/ID/stats`.
pub async fn read(client: &Client, reference: &str, request: &DockerRequest) -> Answer {
    let task = find(client, reference).await?;
    if !is_running(&task) {
        return Err(DockerError::new(StatusCode::CONFLICT, format!("container {reference} is not running")));
    }
    let node = client.nodes().get(&task.node_id).await?.description.unwrap_or_default();
    let resources = node.resources.unwrap_or_default();
    let limit =
        task.spec.as_ref().and_then(|spec| spec.limits.as_ref()).and_then(|limits| limits.memory_bytes);
    let usage = UsageCounters {
        cpus: (resources.cpu_milli / 1000).max(1),
        memory: limit.unwrap_or(resources.memory_bytes),
        cpu_total: 0,
        system_total: 0,
    };
    let is_stream = request.text("stream").is_none() || request.flag("stream");
    if !is_stream {
        let mut usage = usage;
        return ok(&usage.next(&task));
    }
    let source = Some((client.clone(), task, usage, true));
    let lines = stream::unfold(source, |source| async {
        let (client, mut task, mut usage, is_first) = source?;
        if !is_first {
            sleep(STATS_INTERVAL).await;
            task = match client.tasks().get(&task.id).await {
                Ok(task) if is_running(&task) => task,
                Ok(_) => return None,
                Err(error) => return Some((Err(BodyError::other(error)), None)),
            };
        }
        let line = Bytes::from(usage.next(&task).to_string() + "\n");
        Some((Ok(line), Some((client, task, usage, false))))
    });
    Ok(response::stream("application/json", lines))
}

fn container_name(task: &v1::Task) -> String {
    match one_off::is_one_off(task) {
        true => format!("/{}", task.service_name),
        false => format!("/{}.{}", tasks::name_of(task), docker_id(&task.id)),
    }
}

/// Nodes report the use of CPU as a rate over some seconds. Clients compute it from counters.
struct UsageCounters {
    cpus: u64,
    /// The limit in bytes.
    memory: u64,
    /// Nanoseconds of the container and of all CPUs.
    cpu_total: u64,
    system_total: u64,
}

impl UsageCounters {
    /// The statistics of the next second.
    fn next(&mut self, task: &v1::Task) -> Value {
        let usage = task.usage.unwrap_or_default();
        let cpu = |total: u64, system: u64| {
            json!({
                "cpu_usage": {"total_usage": total, "usage_in_kernelmode": 0, "usage_in_usermode": total},
                "system_cpu_usage": system, "online_cpus": self.cpus,
                "throttling_data": {"periods": 0, "throttled_periods": 0, "throttled_time": 0},
            })
        };
        let before = cpu(self.cpu_total, self.system_total);
        let (cpu_total, system_total) = (
            self.cpu_total.saturating_add(usage.cpu_milli.saturating_mul(NANOS_PER_SECOND / 1000)),
            self.system_total.saturating_add(self.cpus.saturating_mul(NANOS_PER_SECOND)),
        );
        let now = cpu(cpu_total, system_total);
        (self.cpu_total, self.system_total) = (cpu_total, system_total);
        let io =
            |operation: &str, bytes: u64| json!({"major": 0, "minor": 0, "op": operation, "value": bytes});
        let at = now_ms();
        json!({
            "id": one_off::id_of_task(task), "name": container_name(task),
            "read": time(at), "preread": time(at.saturating_sub(1000)), "num_procs": 0,
            "pids_stats": {"current": usage.pids}, "cpu_stats": now, "precpu_stats": before,
            "memory_stats": {"usage": usage.memory_bytes, "limit": self.memory, "stats": {}},
            "networks": {"eth0": {
                "rx_bytes": usage.received_bytes, "rx_packets": 0, "rx_errors": 0, "rx_dropped": 0,
                "tx_bytes": usage.sent_bytes, "tx_packets": 0, "tx_errors": 0, "tx_dropped": 0,
            }},
            "blkio_stats": {"io_service_bytes_recursive": [
                io("read", usage.read_bytes), io("write", usage.written_bytes),
            ]},
            "storage_stats": {},
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_is_a_counter_at_the_reported_rate() {
        let usage = v1::TaskUsage { cpu_milli: 500, ..Default::default() };
        let task = v1::Task { usage: Some(usage), ..Default::default() };
        let mut counters = UsageCounters { cpus: 2, memory: 1, cpu_total: 0, system_total: 0 };
        counters.next(&task);
        let second = counters.next(&task);
        let at = |part: &str, field: &str| second[part].pointer(field).and_then(Value::as_u64).unwrap();
        let cpu = at("cpu_stats", "/cpu_usage/total_usage") - at("precpu_stats", "/cpu_usage/total_usage");
        let system = at("cpu_stats", "/system_cpu_usage") - at("precpu_stats", "/system_cpu_usage");
        assert_eq!((cpu, system), (NANOS_PER_SECOND / 2, 2 * NANOS_PER_SECOND));
    }
}
