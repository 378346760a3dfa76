//! The specs of Docker's API in JSON, as version 1.44 has them. Docker decodes a field that is null like one that is
//! missing, so that every field is optional here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Labels, options of drivers and the like.
pub type Pairs = BTreeMap<String, String>;

macro_rules! models {
    ($( $(#[$about:meta])* $name:ident { $( $(#[$with:meta])* $field:ident: $type:ty, )* } )*) => { $(
        $(#[$about])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "PascalCase", default)]
        pub struct $name { $(
            $(#[$with])*
            #[serde(skip_serializing_if = "Option::is_none")]
            pub $field: Option<$type>,
        )* }
    )* };
}

models! {
    /// A service.
    ServiceSpec {
        name: String,
        labels: Pairs,
        task_template: TaskSpec,
        mode: ServiceMode,
        update_config: UpdateConfig,
        rollback_config: UpdateConfig,
        networks: Vec<NetworkAttachment>,
        endpoint_spec: EndpointSpec,
    }
    /// How many tasks; one field is set. Docker reads keys in any case, and docker-py writes these in lower case.
    ServiceMode {
        #[serde(alias = "replicated")]
        replicated: ReplicatedMode,
        #[serde(alias = "global")]
        global: Empty,
        replicated_job: serde_json::Value,
        global_job: serde_json::Value,
    }
    ReplicatedMode {
        replicas: u64,
    }
    Empty {}
    /// How tasks are replaced. Durations are in nanoseconds, here and below.
    UpdateConfig {
        parallelism: u64,
        delay: i64,
        failure_action: String,
        monitor: i64,
        max_failure_ratio: f64,
        order: String,
    }
    NetworkAttachment {
        target: String,
        aliases: Vec<String>,
        driver_opts: Pairs,
    }
    EndpointSpec {
        mode: String,
        ports: Vec<PortConfig>,
    }
    PortConfig {
        name: String,
        protocol: String,
        target_port: u32,
        published_port: u32,
        publish_mode: String,
    }
    /// What a task runs.
    TaskSpec {
        plugin_spec: serde_json::Value,
        container_spec: ContainerSpec,
        network_attachment_spec: serde_json::Value,
        resources: ResourceRequirements,
        restart_policy: RestartPolicy,
        placement: Placement,
        force_update: u64,
        runtime: String,
        networks: Vec<NetworkAttachment>,
        log_driver: Driver,
    }
    ContainerSpec {
        image: String,
        labels: Pairs,
        command: Vec<String>,
        args: Vec<String>,
        hostname: String,
        env: Vec<String>,
        dir: String,
        user: String,
        groups: Vec<String>,
        privileges: Privileges,
        stop_signal: String,
        #[serde(rename = "TTY")]
        tty: bool,
        open_stdin: bool,
        read_only: bool,
        mounts: Vec<Mount>,
        stop_grace_period: i64,
        healthcheck: HealthCheck,
        hosts: Vec<String>,
        #[serde(rename = "DNSConfig")]
        dns_config: DnsConfig,
        secrets: Vec<SecretReference>,
        configs: Vec<ConfigReference>,
        isolation: String,
        init: bool,
        sysctls: Pairs,
        capability_add: Vec<String>,
        capability_drop: Vec<String>,
        ulimits: Vec<Ulimit>,
        oom_score_adj: i64,
    }
    Privileges {
        credential_spec: serde_json::Value,
        #[serde(rename = "SELinuxContext")]
        selinux_context: serde_json::Value,
        seccomp: Seccomp,
        app_armor: AppArmor,
        no_new_privileges: bool,
    }
    Seccomp {
        mode: String,
        profile: String,
    }
    AppArmor {
        mode: String,
    }
    Mount {
        r#type: String,
        source: String,
        target: String,
        read_only: bool,
        consistency: String,
        bind_options: BindOptions,
        volume_options: VolumeOptions,
        image_options: serde_json::Value,
        tmpfs_options: TmpfsOptions,
        cluster_options: serde_json::Value,
    }
    BindOptions {
        propagation: String,
        non_recursive: bool,
        create_mountpoint: bool,
        read_only_non_recursive: bool,
        read_only_force_recursive: bool,
    }
    VolumeOptions {
        no_copy: bool,
        labels: Pairs,
        driver_config: Driver,
        subpath: String,
    }
    TmpfsOptions {
        size_bytes: i64,
        mode: u32,
        options: Vec<Vec<String>>,
    }
    Driver {
        name: String,
        options: Pairs,
    }
    HealthCheck {
        test: Vec<String>,
        interval: i64,
        timeout: i64,
        retries: i64,
        start_period: i64,
        start_interval: i64,
    }
    DnsConfig {
        nameservers: Vec<String>,
        search: Vec<String>,
        options: Vec<String>,
    }
    SecretReference {
        file: FileTarget,
        #[serde(rename = "SecretID")]
        secret_id: String,
        secret_name: String,
    }
    ConfigReference {
        file: FileTarget,
        runtime: serde_json::Value,
        #[serde(rename = "ConfigID")]
        config_id: String,
        config_name: String,
    }
    FileTarget {
        name: String,
        #[serde(rename = "UID")]
        uid: String,
        #[serde(rename = "GID")]
        gid: String,
        mode: u32,
    }
    Ulimit {
        name: String,
        soft: i64,
        hard: i64,
    }
    ResourceRequirements {
        limits: Limit,
        reservations: Reservations,
    }
    Limit {
        #[serde(rename = "NanoCPUs")]
        nano_cpus: i64,
        memory_bytes: i64,
        pids: i64,
    }
    Reservations {
        #[serde(rename = "NanoCPUs")]
        nano_cpus: i64,
        memory_bytes: i64,
        generic_resources: Vec<serde_json::Value>,
    }
    RestartPolicy {
        condition: String,
        delay: i64,
        max_attempts: u64,
        window: i64,
    }
    Placement {
        constraints: Vec<String>,
        preferences: Vec<Preference>,
        max_replicas: u64,
        platforms: Vec<serde_json::Value>,
    }
    Preference {
        spread: Spread,
    }
    Spread {
        spread_descriptor: String,
    }
}
