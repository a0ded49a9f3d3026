//! The registry survives loss and corruption of its store: the agent rebuilds attachments from the kernel.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    cluster::with_cluster,
    node::{NODE_V4, Node, POD_V4, POD_V6, on_node, with_agent},
    pod::Pod,
    sys,
};
use redb::ReadableTable as _;
use serde_json::Value;

const STORE: &str = "/run/ferrule/registry.redb";
const META: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("meta");
const ATTACHMENTS: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("attachments");
const LIMIT: Duration = Duration::from_secs(20);

/// A ping and a TCP connection between two pods, to detect interruptions.
struct Traffic {
    ping: Child,
    client: TcpStream,
    server: TcpStream,
}

impl Traffic {
    fn begin(from: &Pod, to: &Pod) -> anyhow::Result<Self> {
        let address = *to.addresses.first().context("not attached")?;
        let listener = sys::in_netns(to.path(), || Ok(TcpListener::bind((address, 0))?))?;
        let at = listener.local_addr()?;
        let client = sys::in_netns(from.path(), || Ok(TcpStream::connect_timeout(&at, LIMIT)?))?;
        let (server, _) = listener.accept()?;
        for end in [&client, &server] {
            end.set_read_timeout(Some(LIMIT))?;
        }
        let mut command = from.command("ping")?;
        command.args(["-n", "-q", "-i", "0.005", &address.to_string()]).stdout(Stdio::piped());
        let mut traffic = Self { ping: sys::die_with_parent(&mut command).spawn()?, client, server };
        traffic.talk()?;
        Ok(traffic)
    }

    fn talk(&mut self) -> anyhow::Result<()> {
        let mut answer = [0; 4];
        self.client.write_all(b"ping")?;
        self.server.read_exact(&mut answer).context("the server received nothing")?;
        self.server.write_all(&answer)?;
        self.client.read_exact(&mut answer).context("the client received no reply")
    }

    /// Requires that no ping was lost and that the connection still works.
    fn end(mut self) -> anyhow::Result<()> {
        self.talk()?;
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.ping.id().cast_signed()),
            nix::sys::signal::Signal::SIGINT,
        )?;
        let output = self.ping.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(text.contains(" 0% packet loss"), "{text}");
        Ok(())
    }
}

/// The part of an attachment that must survive a restart.
fn identity(attachments: &[Value]) -> Vec<Value> {
    let keys = [
        "network",
        "container_id",
        "ifname",
        "pod_namespace",
        "pod_name",
        "pod_uid",
        "addresses",
        "mac",
        "mtu",
        "netns",
        "netns_ino",
        "host_ifname",
        "host_ifindex",
    ];
    let of = |it: &Value| keys.iter().map(|key| it.get(*key).cloned().unwrap_or_default()).collect();
    let mut all: Vec<Value> = attachments.iter().map(of).collect();
    all.sort_by_key(Value::to_string);
    all
}

/// Stops the agent, damages its store and restarts the agent; pods and runtime must not notice.
fn damaged_store_is_rebuilt(
    damage: impl FnOnce() -> anyhow::Result<()> + Send,
    logged: &str,
) -> anyhow::Result<()> {
    with_agent(|node| {
        let clean = node.kernel_state()?;
        // Makes the store contain a released address in cooldown as well.
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let before = identity(&node.attachments()?);
        let state = node.kernel_state()?;
        let traffic = Traffic::begin(&a, &b)?;
        node.kill_agent()?;
        damage()?;
        node.start_again()?;
        ensure!(node.log().contains(logged), "{logged:?} is not logged");
        let after = identity(&node.attachments()?);
        ensure!(after == before, "attachments {after:#?}\nbefore: {before:#?}");
        ensure!(node.kernel_state()? == state);
        lives_on(node, &a, &b)?;
        ensure!(node.metric("ferrule_registry_rebuilds_total")? == 1.0);
        node.kill_agent()?;
        node.start_again()?;
        ensure!(node.metric("ferrule_registry_rebuilds_total")? == 0.0, "the registry was rebuilt again");
        traffic.end()?;
        let runtime = node.runtime()?;
        runtime.del(&a)?;
        runtime.del(&b)?;
        ensure!(node.attachments()?.is_empty());
        node.wait_for_kernel_state(&clean)
    })
}

/// CHECK and a repeated ADD find no deviation, and the next pod gets an unused address.
fn lives_on(node: &Node, a: &Pod, b: &Pod) -> anyhow::Result<()> {
    let runtime = node.runtime()?;
    for pod in [a, b] {
        runtime.check(pod)?;
        let mut again = pod.clone();
        again.attached(&runtime.add(pod)?)?;
        ensure!(again.addresses == pod.addresses);
    }
    let new = node.attach("new")?;
    let is_taken = |it: &std::net::IpAddr| a.addresses.contains(it) || b.addresses.contains(it);
    ensure!(!new.addresses.iter().any(is_taken), "{:?}", new.addresses);
    new.ping(&a.addresses.first().context("not attached")?.to_string())?;
    runtime.del(&new)
}

/// Starts an agent in another network namespace, as a deployment without `hostNetwork` does. Returns the
/// reason of its exit.
fn start_outside(flags: &[&str]) -> anyhow::Result<String> {
    let outside = std::path::Path::new("/run/netns/outside");
    let mut agent = sys::command_in(outside, ferrule_tests::dist::binary("ferrule-agent")?)?;
    agent.args(["--standalone", "--pod-cidr", POD_V4, "--pod-cidr", POD_V6]).args(flags);
    let mut agent = sys::die_with_parent(&mut agent).stderr(Stdio::piped()).spawn()?;
    let mut ended = None;
    let refused = sys::wait_until("the agent exits", LIMIT, || {
        ended = agent.try_wait()?;
        Ok(ended.is_some())
    });
    // An agent that keeps running has done its damage by now.
    agent.kill()?;
    let stderr = String::from_utf8_lossy(&agent.wait_with_output()?.stderr).into_owned();
    refused?;
    ensure!(ended.and_then(|it| it.code()) == Some(1), "{stderr}");
    Ok(stderr)
}

#[test]
fn missing_store_is_rebuilt_without_packet_loss() {
    damaged_store_is_rebuilt(|| Ok(fs::remove_file(STORE)?), "was lost").unwrap();
}

#[test]
fn empty_store_is_rebuilt_without_packet_loss() {
    damaged_store_is_rebuilt(|| Ok(fs::write(STORE, "")?), "was lost").unwrap();
}

#[test]
fn truncated_store_is_quarantined_and_rebuilt() {
    let cut = || {
        let bytes = fs::read(STORE)?;
        Ok(fs::write(STORE, bytes.get(..bytes.len() / 2).context("the store is too short")?)?)
    };
    damaged_store_is_rebuilt(cut, "is damaged").unwrap();
}

#[test]
fn corrupt_store_is_quarantined_and_rebuilt() {
    let garble = || {
        fs::write(STORE, "no database")?;
        Ok(())
    };
    damaged_store_is_rebuilt(garble, "is damaged").unwrap();
}

#[test]
fn unreadable_record_is_rebuilt_and_others_are_kept() {
    let spoil = || {
        let database = redb::Database::open(STORE)?;
        let transaction = database.begin_write()?;
        {
            let mut table = transaction.open_table(ATTACHMENTS)?;
            let key = table.first()?.context("no record")?.0.value().to_owned();
            table.insert(key.as_str(), b"{\"key\": 7}".as_slice())?;
        }
        Ok(transaction.commit()?)
    };
    damaged_store_is_rebuilt(spoil, "1 unreadable records").unwrap();
}

#[test]
fn missing_record_is_rebuilt() {
    let lose = || {
        let database = redb::Database::open(STORE)?;
        let transaction = database.begin_write()?;
        transaction.open_table(ATTACHMENTS)?.pop_first()?.context("no record")?;
        Ok(transaction.commit()?)
    };
    damaged_store_is_rebuilt(lose, "had lost attachments").unwrap();
}

#[test]
fn store_of_a_newer_layout_is_refused_and_kept() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        let set = |layout: u64| -> anyhow::Result<u64> {
            let database = redb::Database::open(STORE)?;
            let transaction = database.begin_write()?;
            let before = transaction.open_table(META)?.insert("schema", layout)?.map(|it| it.value());
            transaction.commit()?;
            before.context("the store has no layout")
        };
        node.kill_agent()?;
        let before = set(99)?;
        let bytes = fs::read(STORE)?;
        let error =
            node.start_again().map_or_else(|error| format!("{error:#}"), |()| "the agent started".to_owned());
        ensure!(error.contains("has layout 99") && error.contains("a newer agent wrote it"), "{error}");
        ensure!(fs::read(STORE)? == bytes, "the store was written to");
        set(before)?;
        node.start_again()?;
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}

/// Rewrites the store as an agent of layout 1 would have written it.
fn downgrade_to_layout_1() -> anyhow::Result<()> {
    let database = redb::Database::open(STORE)?;
    let transaction = database.begin_write()?;
    let mut table = transaction.open_table(ATTACHMENTS)?;
    let records =
        table.iter()?.map(|it| it.map(|(key, json)| (key.value().to_owned(), json.value().to_vec())));
    for (key, json) in records.collect::<Result<Vec<_>, _>>()? {
        let mut record: Value = serde_json::from_slice(&json)?;
        let fields = record.as_object_mut().context("the record is not an object")?;
        let link = fields.get("host").and_then(|host| host.get("link")).cloned().context("no host link")?;
        fields.insert("host".to_owned(), link);
        let vif = fields.get_mut("vif").and_then(Value::as_object_mut).context("no VIF")?;
        vif.remove("kind").context("no kind")?;
        table.insert(key.as_str(), serde_json::to_vec(&record)?.as_slice())?;
    }
    drop(table);
    transaction.open_table(META)?.insert("schema", 1)?;
    Ok(transaction.commit()?)
}

#[test]
fn registry_of_layout_1_migrates_without_packet_loss() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        let before = node.kernel_state()?;
        node.kill_agent()?;
        downgrade_to_layout_1()?;
        node.start_again()?;
        ensure!(node.kernel_state()? == before, "{:#?}\nwas {before:#?}", node.kernel_state()?);
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}

#[test]
fn agent_in_another_netns_cannot_share_the_maps_of_a_running_agent() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        let state = node.kernel_state()?;
        let stderr = start_outside(&["--state-dir", "/run/another", "--socket", "/run/another/agent.sock"])?;
        ensure!(
            stderr.contains("another agent uses the maps") && stderr.contains("hostNetwork: true"),
            "{stderr}"
        );
        ensure!(node.kernel_state()? == state, "{:#?}\nwas {state:#?}", node.kernel_state()?);
        lives_on(node, &a, &b)?;
        // The maps of a dead agent do not block a new one.
        node.kill_agent()?;
        node.start_again()?;
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}

#[test]
fn agent_in_another_netns_is_refused_without_side_effects() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        node.stop_agent()?;
        let (state, bytes) = (node.kernel_state()?, fs::read(STORE)?);
        ensure!(state.iter().any(|it| it.starts_with("VIFS")), "{state:#?}");
        let stderr = start_outside(&[])?;
        ensure!(stderr.contains("hostNetwork: true"), "{stderr}");
        ensure!(node.kernel_state()? == state, "the kernel state was changed: {:#?}", node.kernel_state()?);
        ensure!(fs::read(STORE)? == bytes, "the store was written to");
        node.start_again()?;
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}

#[test]
fn attachments_from_before_a_reboot_are_dropped_unless_the_kernel_has_them() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        node.runtime()?.del(&node.attach("resting")?)?;
        let before = identity(&node.attachments()?);
        node.stop_agent()?;
        let boot = |id: &str| -> anyhow::Result<()> {
            fs::write("/run/boot_id", id)?;
            sys::run("mount --bind /run/boot_id /proc/sys/kernel/random/boot_id").map(drop)
        };
        // A changed boot ID alone: the kernel still has everything.
        boot("00000000-0000-0000-0000-000000000001\n")?;
        node.start_again()?;
        ensure!(
            node.log().contains("before the reboot attachments=2 cooldown=2"),
            "the reboot is not logged"
        );
        ensure!(identity(&node.attachments()?) == before, "existing attachments were changed");
        lives_on(node, &a, &b)?;
        node.stop_agent()?;
        // A reboot deletes the interfaces. The namespaces stay: their inode numbers prove nothing after a
        // reboot.
        for link in before.iter().filter_map(|it| it.get(11)?.as_str()) {
            sys::run(&format!("ip link del {link}"))?;
        }
        fs::remove_dir_all("/sys/fs/bpf/ferrule")?;
        boot("00000000-0000-0000-0000-000000000002\n")?;
        node.start_again()?;
        ensure!(node.attachments()?.is_empty(), "{:#?}", node.attachments()?);
        ensure!(
            node.metric("ferrule_registry_rebuilds_total")? == 0.0,
            "the registry was rebuilt without a loss"
        );
        node.attach("new").map(drop)
    })
    .unwrap();
}

#[test]
fn attached_pod_whose_record_reverted_to_reserved_stays_connected() {
    with_agent(|node| {
        let clean = node.kernel_state()?;
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        node.stop_agent()?;
        // The record lacks only its last transition, to Attached.
        let database = redb::Database::open(STORE)?;
        let transaction = database.begin_write()?;
        {
            let mut table = transaction.open_table(ATTACHMENTS)?;
            let found = table.iter()?.filter_map(Result::ok).map(|(key, _)| key.value().to_owned());
            let key = found.into_iter().find(|it| it.contains(&a.container_id)).context("no record")?;
            let mut record: Value =
                serde_json::from_slice(table.get(key.as_str())?.context("none")?.value())?;
            record["state"] = "Reserved".into();
            record["host"] = Value::Null;
            table.insert(key.as_str(), serde_json::to_vec(&record)?.as_slice())?;
            transaction.open_table(META)?.insert("unsettled", 1)?;
        }
        transaction.commit()?;
        drop(database);
        node.start_again()?;
        lives_on(node, &a, &b)?;
        let runtime = node.runtime()?;
        runtime.del(&a)?;
        runtime.del(&b)?;
        node.wait_for_kernel_state(&clean)
    })
    .unwrap();
}

#[test]
fn corrupt_store_on_a_full_disk_is_refused_and_kept() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        node.stop_agent()?;
        // Sized to the store's content, which leaves no room for a second store.
        let saved = fs::read(STORE)?;
        fs::create_dir_all("/run/full")?;
        sys::run(&format!("mount -t tmpfs -o size={} tmpfs /run/full", saved.len() + 8192))?;
        fs::write("/run/full/registry.redb", b"no database".repeat(saved.len() / 11))?;
        let error = node
            .start_agent_with(&[
                "--standalone",
                "--pod-cidr",
                POD_V4,
                "--pod-cidr",
                POD_V6,
                "--state-dir",
                "/run/full",
            ])
            .map_or_else(|error| format!("{error:#}"), |()| "the agent started".to_owned());
        ensure!(error.contains("is damaged") && error.contains("it is left as it is"), "{error}");
        let left: Vec<_> =
            fs::read_dir("/run/full")?.map(|it| it.map(|it| it.file_name())).collect::<Result<_, _>>()?;
        ensure!(left.len() == 2, "expected a store and a lock, found {left:?}");
        traffic.end()?;
        node.start_agent(&[POD_V4, POD_V6])?;
        lives_on(node, &a, &b)
    })
    .unwrap();
}

#[test]
fn agent_recovers_when_its_full_disk_has_space_again() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        node.stop_agent()?;
        fs::create_dir_all("/run/small")?;
        sys::run("mount -t tmpfs -o size=1536k tmpfs /run/small")?;
        // Sparse, so that allocating the holes can fail later.
        sys::run(&format!("cp --sparse=always {STORE} /run/small/"))?;
        node.start_again_with(&["--state-dir", "/run/small"])?;
        let runtime = node.runtime()?;
        let clean = node.kernel_state()?;
        // Fill the disk; the file grows until space runs out.
        let _ = fs::write("/run/small/others", vec![1; 4 << 20]);
        let mut pods = Vec::new();
        let refused = loop {
            let pod = node.pod(&format!("more-{}", pods.len()))?;
            let answer = runtime.call("ADD", &pod)?;
            if !answer.status.success() {
                break (pod, answer.into_error()?);
            }
            pods.push(pod);
            ensure!(pods.len() < 200, "ADD kept succeeding on a full disk");
        };
        let (pod, error) = refused;
        ensure!(error.code == 11 && error.to_string().contains("registry.redb"), "{error}");
        fs::remove_file("/run/small/others")?;
        sys::wait_until("the agent is ready again", Duration::from_secs(5), || {
            Ok(node.http("/readyz")?.0 == 200)
        })?;
        runtime.add(&pod)?;
        pods.push(pod);
        pods.iter().try_for_each(|pod| runtime.del(pod))?;
        sys::wait_until("the pods' kernel state is removed", Duration::from_secs(5), || {
            Ok(node.kernel_state()? == clean)
        })?;
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}

#[test]
fn additional_interfaces_are_rebuilt_and_deleted_with_the_first_after_store_loss() {
    const TWO: &str = r#"{"interfaces":[
        {"name":"eth0","addresses":["10.244.0.20","fd00:10:244::20"],"gateways":["10.244.0.1","fd00:10:244::1"],
         "routes":[{"dst":"198.18.0.0/15","gw":"10.244.0.254","mtu":1300}],"mac":"02:00:00:00:00:14","mtu":1400},
        {"name":"a1","addresses":["10.244.0.21"],"routes":[{"dst":"203.0.113.0/24","priority":7}]}]}"#;
    with_cluster(&[], |node, cluster| {
        let clean = node.kernel_state()?;
        let pod = cluster.pod(node, "two", &[("vif.ferrule.dev/v1", TWO)])?;
        let runtime = node.runtime()?;
        let answer = runtime.add(&pod)?;
        let before = identity(&node.attachments()?);
        ensure!(before.len() == 2, "{before:#?}");
        node.kill_agent()?;
        fs::remove_file(STORE)?;
        node.start_again()?;
        let after = identity(&node.attachments()?);
        ensure!(after == before, "attachments {after:#?}\nbefore: {before:#?}");
        runtime.check(&pod)?;
        let again = runtime.add(&pod)?;
        ensure!(again == answer, "a repeated ADD returns {again:#}\nexpected {answer:#}");
        ensure!(identity(&node.attachments()?) == before, "the interfaces were recreated");
        runtime.del(&pod)?;
        ensure!(node.attachments()?.is_empty());
        node.wait_for_kernel_state(&clean)
    })
    .unwrap();
}

#[test]
fn attachment_without_known_pod_is_kept_until_its_namespace_ends() {
    with_cluster(&["--reconcile-period", "1"], |node, cluster| {
        let clean = node.kernel_state()?;
        let pod = cluster.attach(node, "web")?;
        node.kill_agent()?;
        fs::remove_file(STORE)?;
        fs::remove_dir_all("/sys/fs/bpf/ferrule")?;
        node.start_again()?;
        // The API server may even report the pod as deleted.
        cluster.delete(&pod)?;
        let rounds = node.metric("ferrule_reconcile_rounds_total")?;
        sys::wait_until("the garbage collector has examined all attachments several times", LIMIT, || {
            Ok(node.metric("ferrule_reconcile_rounds_total")? >= rounds + 4.0)
        })?;
        let kept = node.attachments()?;
        ensure!(kept.len() == 1 && kept[0]["pod_name"] == "", "{kept:#?}");
        pod.ping(NODE_V4)?;
        pod.remove()?;
        sys::wait_until("the attachment is removed", LIMIT, || Ok(node.attachments()?.is_empty()))?;
        node.wait_for_kernel_state(&clean)
    })
    .unwrap();
}

#[test]
fn single_family_pod_is_rebuilt_with_its_family_after_store_loss() {
    on_node(|node| {
        node.start_agent(&[POD_V4])?;
        let a = node.attach("a")?;
        node.stop_agent()?;
        node.start_agent(&[POD_V4, POD_V6])?;
        let b = node.attach("b")?;
        ensure!((a.addresses.len(), b.addresses.len()) == (1, 2));
        let before = identity(&node.attachments()?);
        node.stop_agent()?;
        fs::remove_file(STORE)?;
        node.start_again()?;
        let after = identity(&node.attachments()?);
        ensure!(after == before, "attachments {after:#?}\nbefore: {before:#?}");
        lives_on(node, &a, &b)
    })
    .unwrap();
}

#[test]
fn deferred_del_is_applied_despite_store_loss() {
    with_agent(|node| {
        let clean = node.kernel_state()?;
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        node.kill_agent()?;
        let runtime = node.runtime()?;
        runtime.del(&a)?;
        fs::remove_file(STORE)?;
        node.start_again()?;
        let left = node.attachments()?;
        ensure!(left.len() == 1 && left[0]["container_id"] == b.container_id.as_str(), "{left:#?}");
        runtime.del(&b)?;
        node.wait_for_kernel_state(&clean)
    })
    .unwrap();
}

#[test]
fn lost_maps_and_store_are_rebuilt_from_routes_and_neighbours() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        let before = node.attachments()?;
        node.kill_agent()?;
        fs::remove_file(STORE)?;
        fs::remove_dir_all("/sys/fs/bpf/ferrule")?;
        node.start_again()?;
        let after = node.attachments()?;
        for key in ["addresses", "mac", "host_ifindex", "netns_ino"] {
            let of = |all: &[Value]| all.iter().map(|it| it[key].clone()).collect::<Vec<_>>();
            ensure!(of(&after) == of(&before), "{key}: {after:#?}");
        }
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}

#[test]
fn unreachable_namespace_is_adopted_when_the_runtime_names_it() {
    with_agent(|node| {
        let a = node.attach("a")?;
        let hidden = a.netns.with_extension("hidden");
        node.kill_agent()?;
        fs::remove_file(STORE)?;
        // Outside the directories that the agent searches for namespaces, and without a process inside.
        fs::create_dir_all("/run/elsewhere")?;
        let elsewhere = std::path::Path::new("/run/elsewhere").join(hidden.file_name().context("no name")?);
        fs::write(&elsewhere, "")?;
        sys::run(&format!("mount --bind {} {}", a.netns.display(), elsewhere.display()))?;
        sys::run(&format!("umount {}", a.netns.display()))?;
        node.start_again()?;
        let kept = node.attachments()?;
        ensure!(
            kept.len() == 1 && kept[0]["netns"] == "" && kept[0]["netns_ino"].as_u64().unwrap_or(0) == 0,
            "{kept:#?}"
        );
        let a = Pod { netns: elsewhere.clone(), ..a };
        let mut again = a.clone();
        again.attached(&node.runtime()?.add(&a)?)?;
        ensure!(again.addresses == a.addresses);
        let known = node.attachments()?;
        ensure!(known[0]["netns"] == elsewhere.to_string_lossy().as_ref(), "{known:#?}");
        ensure!(known[0]["host_ifindex"] == kept[0]["host_ifindex"], "the interface was recreated");
        node.runtime()?.check(&a)?;
        node.runtime()?.del(&a)
    })
    .unwrap();
}

#[test]
fn unrecoverable_stamped_interface_is_kept_and_logged() {
    with_agent(|node| {
        let a = node.attach("a")?;
        sys::run("ip link add frunknown type veth peer name frunknown1")?;
        sys::run("ip link set frunknown alias ferrule:cluster:deadbeef:eth0")?;
        node.kill_agent()?;
        fs::remove_file(STORE)?;
        for _ in 0..2 {
            node.start_again()?;
            ensure!(sys::run("ip -o link show")?.contains("frunknown@"), "the interface was deleted");
            ensure!(node.log().contains("deadbeef") && node.attachments()?.len() == 1);
            ensure!(node.metric("ferrule_registry_unknown_interfaces")? == 1.0);
            node.runtime()?.check(&a)?;
            node.kill_agent()?;
        }
        Ok(())
    })
    .unwrap();
}
