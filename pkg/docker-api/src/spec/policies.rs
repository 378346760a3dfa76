//! Policies of updates and restarts, limits, and the limits of logs.

use warren_types::spec::MAX_PIDS_LIMIT;
use warren_types::{
    Bytes, FailureRatio, Limits, LogLimits, MilliCpu, Parallelism, Resources, RestartPolicy, UpdatePolicy,
};

use super::reader::{SpecReader, nanos, non_empty};
use crate::model;

/// Billionths of a core in a thousandth.
const NANO_PER_MILLI: i64 = 1_000_000;
/// Drivers of logs whose options are honoured. Nodes keep the output of all tasks.
const LOG_DRIVERS: [&str; 2] = ["json-file", "local"];

/// A policy; the default if there is none.
pub fn update_from_docker(
    reader: &mut SpecReader,
    path: &str,
    docker: Option<model::UpdateConfig>,
) -> UpdatePolicy {
    let mut policy = UpdatePolicy::default();
    let Some(docker) = docker else { return policy };
    let model::UpdateConfig { parallelism, delay, failure_action, monitor, max_failure_ratio, order } =
        docker;
    // As in Docker, a policy without a number replaces all tasks at a time.
    policy.parallelism =
        Parallelism::Slots(u32::try_from(parallelism.unwrap_or_default()).unwrap_or(u32::MAX));
    policy.delay = reader.duration(format!("{path}.Delay"), delay).unwrap_or_default();
    policy.monitor = reader.positive_duration(format!("{path}.Monitor"), monitor).unwrap_or(policy.monitor);
    policy.order = non_empty(order).and_then(|order| reader.parse(format!("{path}.Order"), &order));
    policy.on_failure =
        non_empty(failure_action).and_then(|action| reader.parse(format!("{path}.FailureAction"), &action));
    // Clients send numbers of single precision, which are never exact.
    let ratio = max_failure_ratio.unwrap_or_default() * 1000.0;
    if (0.0..=1000.0).contains(&ratio) && (ratio - ratio.round()).abs() < 0.01 {
        policy.failure_ratio = FailureRatio(ratio.round() as u16);
    } else {
        let message = "is not a ratio from 0 to 1 with at most three decimals";
        reader.refuse(format!("{path}.MaxFailureRatio"), message);
    }
    policy
}

/// Without a percentage of slots, which Docker does not have.
pub fn update_to_docker(policy: &UpdatePolicy) -> model::UpdateConfig {
    let UpdatePolicy {
        parallelism,
        delay,
        order,
        monitor,
        failure_ratio: FailureRatio(thousandths),
        on_failure,
    } = *policy;
    let slots = match parallelism {
        Parallelism::Slots(slots) => slots,
        Parallelism::Percent(_) => 1,
    };
    model::UpdateConfig {
        parallelism: Some(slots.into()),
        delay: Some(nanos(delay)),
        failure_action: on_failure.map(|action| action.as_str().to_owned()),
        monitor: Some(nanos(monitor)),
        max_failure_ratio: Some(f64::from(thousandths) / 1000.0),
        order: order.map(|order| order.as_str().to_owned()),
    }
}

/// When a worker restarts a task. Zero times are the defaults.
pub fn restart_from_docker(reader: &mut SpecReader, docker: model::RestartPolicy) -> RestartPolicy {
    let model::RestartPolicy { condition, delay, max_attempts, window } = docker;
    let default = RestartPolicy::default();
    let path = |field: &str| format!("TaskTemplate.RestartPolicy.{field}");
    let condition = non_empty(condition).and_then(|condition| reader.parse(path("Condition"), &condition));
    let max = max_attempts.map(|max| u32::try_from(max).unwrap_or(u32::MAX));
    RestartPolicy {
        condition: condition.unwrap_or(default.condition),
        delay: reader.positive_duration(path("Delay"), delay).unwrap_or(default.delay),
        max: max.unwrap_or(default.max),
        window: reader.positive_duration(path("Window"), window).unwrap_or(default.window),
    }
}

/// All of the policy.
pub fn restart_to_docker(policy: &RestartPolicy) -> model::RestartPolicy {
    let RestartPolicy { condition, delay, max, window } = *policy;
    model::RestartPolicy {
        condition: Some(condition.as_str().to_owned()),
        delay: Some(nanos(delay)),
        max_attempts: Some(max.into()),
        window: Some(nanos(window)),
    }
}

/// Limits and reservations.
pub fn resources_from_docker(
    reader: &mut SpecReader,
    docker: model::ResourceRequirements,
) -> (Limits, Resources) {
    let model::ResourceRequirements { limits, reservations } = docker;
    let path = |field: &str| format!("TaskTemplate.Resources.{field}");
    let model::Limit { nano_cpus, memory_bytes, pids } = limits.unwrap_or_default();
    let limits = Limits {
        cpu: cpus(reader, path("Limits.NanoCPUs"), nano_cpus),
        memory: reader.positive(path("Limits.MemoryBytes"), memory_bytes).map(Bytes),
        pids: match pids {
            Some(-1) => Some(MAX_PIDS_LIMIT),
            limit => reader.positive(path("Limits.Pids"), limit),
        },
    };
    let model::Reservations { nano_cpus, memory_bytes, generic_resources } = reservations.unwrap_or_default();
    let is_set = generic_resources.is_some_and(|resources| !resources.is_empty());
    let message =
        "nodes offer CPU and memory only in this version; select nodes with a constraint on a label";
    reader.refuse_if(is_set, path("Reservations.GenericResources"), message);
    let reservations = Resources {
        cpu: cpus(reader, path("Reservations.NanoCPUs"), nano_cpus).unwrap_or_default(),
        memory: Bytes(reader.positive(path("Reservations.MemoryBytes"), memory_bytes).unwrap_or_default()),
    };
    (limits, reservations)
}

fn cpus(reader: &mut SpecReader, path: String, nano: Option<i64>) -> Option<MilliCpu> {
    let nano = nano?;
    if nano % NANO_PER_MILLI != 0 {
        reader.refuse(path, format!("{nano} are not whole thousandths of a CPU"));
        return None;
    }
    reader.positive(path, Some(nano / NANO_PER_MILLI)).map(MilliCpu)
}

/// Limits and reservations; absent ones are left out.
pub fn resources_to_docker(limits: &Limits, reservations: &Resources) -> model::ResourceRequirements {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let nano = |MilliCpu(milli): MilliCpu| signed(milli.saturating_mul(1_000_000));
    let limit = model::Limit {
        nano_cpus: limits.cpu.map(nano),
        memory_bytes: limits.memory.map(|Bytes(bytes)| signed(bytes)),
        pids: limits.pids.map(i64::from),
    };
    let Resources { cpu, memory: Bytes(memory) } = *reservations;
    let reserved = model::Reservations {
        nano_cpus: (cpu.0 != 0).then(|| nano(cpu)),
        memory_bytes: (memory != 0).then(|| signed(memory)),
        generic_resources: None,
    };
    model::ResourceRequirements {
        limits: (limit != model::Limit::default()).then_some(limit),
        reservations: (reserved != model::Reservations::default()).then_some(reserved),
    }
}

/// How much output is kept.
pub fn logs_from_docker(reader: &mut SpecReader, docker: model::Driver) -> LogLimits {
    let model::Driver { name, options } = docker;
    let path = "TaskTemplate.LogDriver";
    let name = name.unwrap_or_default();
    if !name.is_empty() && !LOG_DRIVERS.contains(&name.as_str()) {
        let message = format!(
            "{name:?} is not supported by this version: the nodes keep the output, and send it nowhere; give \
             json-file or local, or leave it out"
        );
        reader.refuse(format!("{path}.Name"), message);
    }
    let mut logs = LogLimits::default();
    for (key, value) in options.into_iter().flatten() {
        let path = format!("{path}.Options.{key}");
        match key.as_str() {
            "max-size" => match binary_size(&value) {
                Some(size) => logs.max_size = size,
                None => reader.refuse(path, format!("{value:?} is not a number of bytes like 10m")),
            },
            "max-file" => logs.max_files = reader.parse(path, &value).unwrap_or(logs.max_files),
            _ => reader.refuse(path, "is not supported by this version; there are max-size and max-file"),
        }
    }
    logs
}

/// `None` for the default.
pub fn logs_to_docker(logs: &LogLimits) -> Option<model::Driver> {
    let LogLimits { max_size: Bytes(size), max_files } = *logs;
    let units = [("g", 30), ("m", 20), ("k", 10)].into_iter();
    let unit = units.into_iter().find(|(_, bits)| size != 0 && size.trailing_zeros() >= *bits);
    let size = unit.map_or_else(|| size.to_string(), |(name, bits)| format!("{}{name}", size >> bits));
    let options = [("max-file", max_files.to_string()), ("max-size", size)];
    let options = options.map(|(key, value)| (key.to_owned(), value)).into();
    let is_default = *logs == LogLimits::default();
    (!is_default).then(|| model::Driver { name: Some(LOG_DRIVERS[0].to_owned()), options: Some(options) })
}

/// A size as the options of log drivers have it: all units are binary.
fn binary_size(text: &str) -> Option<Bytes> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let bits = match lower[digits.len()..].trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return None,
    };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << bits).map(Bytes)
}
