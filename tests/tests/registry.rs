//! The registry loses nothing: what its store lacks is made anew from what the kernel has.

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

/// A ping and a connection between two pods that are both there before and after something happens.
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
        self.server.read_exact(&mut answer).context("nothing arrives")?;
        self.server.write_all(&answer)?;
        self.client.read_exact(&mut answer).context("nothing comes back")
    }

    /// Nothing was lost, and the connection is the same.
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

/// What a restart should not change of an attachment.
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

/// The agent ends, something happens to its store, and it starts again. Nobody but the agent may notice.
fn nothing_is_lost_by(harm: impl FnOnce() -> anyhow::Result<()> + Send, said: &str) -> anyhow::Result<()> {
    with_agent(|node| {
        let clean = node.kernel_state()?;
        // One that the store has as well when it is damaged: what was released rests.
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let before = identity(&node.attachments()?);
        let state = node.kernel_state()?;
        let traffic = Traffic::begin(&a, &b)?;
        node.kill_agent()?;
        harm()?;
        node.start_again()?;
        ensure!(node.log().contains(said), "{said:?} is not said");
        let after = identity(&node.attachments()?);
        ensure!(after == before, "there is {after:#?}\nand was {before:#?}");
        ensure!(node.kernel_state()? == state);
        lives_on(node, &a, &b)?;
        ensure!(node.metric("ferrule_registry_rebuilds_total")? == 1.0);
        node.kill_agent()?;
        node.start_again()?;
        ensure!(node.metric("ferrule_registry_rebuilds_total")? == 0.0, "it is made anew once");
        traffic.end()?;
        let runtime = node.runtime()?;
        runtime.del(&a)?;
        runtime.del(&b)?;
        ensure!(node.attachments()?.is_empty());
        node.wait_for_kernel_state(&clean)
    })
}

/// CHECK and a repeated ADD find all as it was, and the next pod gets an address of its own.
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

/// Starts an agent in another network namespace, as somebody does who deploys it without `hostNetwork`. Gives why it ended.
fn start_outside(flags: &[&str]) -> anyhow::Result<String> {
    let outside = std::path::Path::new("/run/netns/outside");
    let mut agent = sys::command_in(outside, ferrule_tests::dist::binary("ferrule-agent")?)?;
    agent.args(["--standalone", "--pod-cidr", POD_V4, "--pod-cidr", POD_V6]).args(flags);
    let mut agent = sys::die_with_parent(&mut agent).stderr(Stdio::piped()).spawn()?;
    let mut ended = None;
    let refused = sys::wait_until("it ends", LIMIT, || {
        ended = agent.try_wait()?;
        Ok(ended.is_some())
    });
    // One that goes on has done its harm by now.
    agent.kill()?;
    let told = String::from_utf8_lossy(&agent.wait_with_output()?.stderr).into_owned();
    refused?;
    ensure!(ended.and_then(|it| it.code()) == Some(1), "{told}");
    Ok(told)
}

#[test]
fn pain_1_a_registry_that_was_lost_is_made_anew_and_no_pod_notices() {
    nothing_is_lost_by(|| Ok(fs::remove_file(STORE)?), "was lost").unwrap();
}

#[test]
fn pain_1_a_registry_that_was_emptied_is_made_anew_and_no_pod_notices() {
    nothing_is_lost_by(|| Ok(fs::write(STORE, "")?), "was lost").unwrap();
}

#[test]
fn pain_1_a_registry_that_was_cut_off_is_set_aside_and_made_anew() {
    let cut = || {
        let bytes = fs::read(STORE)?;
        Ok(fs::write(STORE, bytes.get(..bytes.len() / 2).context("no store")?)?)
    };
    nothing_is_lost_by(cut, "is damaged").unwrap();
}

#[test]
fn pain_1_a_registry_of_garbage_is_set_aside_and_made_anew() {
    let garble = || {
        fs::write(STORE, "no database")?;
        Ok(())
    };
    nothing_is_lost_by(garble, "is damaged").unwrap();
}

#[test]
fn pain_1_a_record_that_cannot_be_read_is_made_anew_beside_the_others() {
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
    nothing_is_lost_by(spoil, "1 unreadable records").unwrap();
}

#[test]
fn pain_1_a_record_that_is_missing_without_a_trace_is_made_anew_all_the_same() {
    let lose = || {
        let database = redb::Database::open(STORE)?;
        let transaction = database.begin_write()?;
        transaction.open_table(ATTACHMENTS)?.pop_first()?.context("no record")?;
        Ok(transaction.commit()?)
    };
    nothing_is_lost_by(lose, "had lost attachments").unwrap();
}

#[test]
fn a_registry_of_a_newer_agent_is_refused_and_left_as_it_is() {
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
            node.start_again().map_or_else(|error| format!("{error:#}"), |()| "it started".to_owned());
        ensure!(error.contains("has layout 99") && error.contains("a newer agent wrote it"), "{error}");
        ensure!(fs::read(STORE)? == bytes, "it was written to");
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
        record["host"] = record["host"]["link"].take();
        record["vif"].as_object_mut().context("no VIF")?.remove("kind").context("no kind")?;
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
fn an_agent_in_another_network_namespace_has_no_part_in_the_maps_of_one_that_runs() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        let state = node.kernel_state()?;
        let told = start_outside(&["--state-dir", "/run/another", "--socket", "/run/another/agent.sock"])?;
        ensure!(told.contains("another agent uses the maps") && told.contains("hostNetwork: true"), "{told}");
        ensure!(node.kernel_state()? == state, "{:#?}\nwas {state:#?}", node.kernel_state()?);
        lives_on(node, &a, &b)?;
        // A dead one keeps nobody out.
        node.kill_agent()?;
        node.start_again()?;
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}

#[test]
fn pain_1_an_agent_in_another_network_namespace_is_refused_and_touches_nothing() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        node.stop_agent()?;
        let (state, bytes) = (node.kernel_state()?, fs::read(STORE)?);
        ensure!(state.iter().any(|it| it.starts_with("VIFS")), "{state:#?}");
        let told = start_outside(&[])?;
        ensure!(told.contains("hostNetwork: true"), "{told}");
        ensure!(
            node.kernel_state()? == state,
            "it has touched what is the node's: {:#?}",
            node.kernel_state()?
        );
        ensure!(fs::read(STORE)? == bytes, "the store was written to");
        node.start_again()?;
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}

#[test]
fn what_was_attached_before_a_reboot_is_forgotten_unless_the_kernel_has_it() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        node.runtime()?.del(&node.attach("resting")?)?;
        let before = identity(&node.attachments()?);
        node.stop_agent()?;
        let boot = |id: &str| -> anyhow::Result<()> {
            fs::write("/run/boot_id", id)?;
            sys::run("mount --bind /run/boot_id /proc/sys/kernel/random/boot_id").map(drop)
        };
        // It only says so.
        boot("00000000-0000-0000-0000-000000000001\n")?;
        node.start_again()?;
        ensure!(node.log().contains("before the reboot attachments=2 cooldown=2"), "it is not said");
        ensure!(identity(&node.attachments()?) == before, "what is there is made anew");
        lives_on(node, &a, &b)?;
        node.stop_agent()?;
        // As a reboot does, but for the namespaces: that their paths lead to the same numbers says nothing.
        for link in before.iter().filter_map(|it| it.get(11)?.as_str()) {
            sys::run(&format!("ip link del {link}"))?;
        }
        fs::remove_dir_all("/sys/fs/bpf/ferrule")?;
        boot("00000000-0000-0000-0000-000000000002\n")?;
        node.start_again()?;
        ensure!(node.attachments()?.is_empty(), "{:#?}", node.attachments()?);
        ensure!(node.metric("ferrule_registry_rebuilds_total")? == 0.0, "nothing was lost");
        node.attach("new").map(drop)
    })
    .unwrap();
}

#[test]
fn a_pod_whose_record_went_back_to_an_intent_in_a_damaged_store_is_not_cut_off() {
    with_agent(|node| {
        let clean = node.kernel_state()?;
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        node.stop_agent()?;
        // All is there but the record's last state.
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
fn a_registry_on_a_full_disk_is_refused_and_left_as_it_is() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        node.stop_agent()?;
        // As large as what is in it, so that there is no room for another one.
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
            .map_or_else(|error| format!("{error:#}"), |()| "it started".to_owned());
        ensure!(error.contains("is damaged") && error.contains("it is left as it is"), "{error}");
        let left: Vec<_> =
            fs::read_dir("/run/full")?.map(|it| it.map(|it| it.file_name())).collect::<Result<_, _>>()?;
        ensure!(left.len() == 2, "{left:?}: a registry, and a lock");
        traffic.end()?;
        node.start_agent(&[POD_V4, POD_V6])?;
        lives_on(node, &a, &b)
    })
    .unwrap();
}

#[test]
fn an_agent_goes_on_when_the_disk_of_its_registry_has_room_again() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        node.stop_agent()?;
        fs::create_dir_all("/run/small")?;
        sys::run("mount -t tmpfs -o size=1536k tmpfs /run/small")?;
        // With holes, for which there may be no room later.
        sys::run(&format!("cp --sparse=always {STORE} /run/small/"))?;
        node.start_again_with(&["--state-dir", "/run/small"])?;
        let runtime = node.runtime()?;
        let clean = node.kernel_state()?;
        // All that there is, and then what may be written without.
        let _ = fs::write("/run/small/others", vec![1; 4 << 20]);
        let mut pods = Vec::new();
        let refused = loop {
            let pod = node.pod(&format!("more-{}", pods.len()))?;
            let answer = runtime.call("ADD", &pod)?;
            if !answer.status.success() {
                break (pod, answer.into_error()?);
            }
            pods.push(pod);
            ensure!(pods.len() < 200, "a full disk is no trouble");
        };
        let (pod, error) = refused;
        ensure!(error.code == 11 && error.to_string().contains("registry.redb"), "{error}");
        fs::remove_file("/run/small/others")?;
        sys::wait_until("it is ready again", Duration::from_secs(5), || Ok(node.http("/readyz")?.0 == 200))?;
        runtime.add(&pod)?;
        pods.push(pod);
        pods.iter().try_for_each(|pod| runtime.del(pod))?;
        sys::wait_until("nothing is left of them", Duration::from_secs(5), || {
            Ok(node.kernel_state()? == clean)
        })?;
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}

#[test]
fn pain_1_further_interfaces_of_a_pod_come_and_go_with_the_first_one_when_the_registry_was_lost() {
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
        ensure!(after == before, "there is {after:#?}\nand was {before:#?}");
        runtime.check(&pod)?;
        let again = runtime.add(&pod)?;
        ensure!(again == answer, "a repeated ADD gives another answer: {again:#}\nand gave {answer:#}");
        ensure!(identity(&node.attachments()?) == before, "the interfaces were made anew");
        runtime.del(&pod)?;
        ensure!(node.attachments()?.is_empty());
        node.wait_for_kernel_state(&clean)
    })
    .unwrap();
}

#[test]
fn pain_3_an_attachment_whose_pod_is_not_known_any_more_is_kept_as_long_as_it_lives_and_no_longer() {
    with_cluster(&["--reconcile-period", "1"], |node, cluster| {
        let clean = node.kernel_state()?;
        let pod = cluster.attach(node, "web")?;
        node.kill_agent()?;
        fs::remove_file(STORE)?;
        fs::remove_dir_all("/sys/fs/bpf/ferrule")?;
        node.start_again()?;
        // To the API server it may even be gone.
        cluster.delete(&pod)?;
        let rounds = node.metric("ferrule_reconcile_rounds_total")?;
        sys::wait_until("all attachments have been looked at a few times", LIMIT, || {
            Ok(node.metric("ferrule_reconcile_rounds_total")? >= rounds + 4.0)
        })?;
        let kept = node.attachments()?;
        ensure!(kept.len() == 1 && kept[0]["pod_name"] == "", "{kept:#?}");
        pod.ping(NODE_V4)?;
        pod.remove()?;
        sys::wait_until("it is removed", LIMIT, || Ok(node.attachments()?.is_empty()))?;
        node.wait_for_kernel_state(&clean)
    })
    .unwrap();
}

#[test]
fn pain_1_a_pod_of_one_family_keeps_it_when_the_registry_is_lost() {
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
        ensure!(after == before, "there is {after:#?}\nand was {before:#?}");
        lives_on(node, &a, &b)
    })
    .unwrap();
}

#[test]
fn what_was_deleted_while_the_agent_was_away_is_gone_though_the_registry_was_lost() {
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
fn maps_and_registry_that_are_both_lost_are_made_anew_from_routes_and_neighbours() {
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
fn a_namespace_that_no_path_leads_to_is_known_when_its_runtime_names_it() {
    with_agent(|node| {
        let a = node.attach("a")?;
        let hidden = a.netns.with_extension("hidden");
        node.kill_agent()?;
        fs::remove_file(STORE)?;
        // Out of the agent's sight, and of the directories where namespaces are looked for; no process is in it.
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
        ensure!(known[0]["host_ifindex"] == kept[0]["host_ifindex"], "it is the same interface");
        node.runtime()?.check(&a)?;
        node.runtime()?.del(&a)
    })
    .unwrap();
}

#[test]
fn an_interface_of_which_nothing_is_known_is_left_alone_and_said_to_be() {
    with_agent(|node| {
        let a = node.attach("a")?;
        sys::run("ip link add frunknown type veth peer name frunknown1")?;
        sys::run("ip link set frunknown alias ferrule:cluster:deadbeef:eth0")?;
        node.kill_agent()?;
        fs::remove_file(STORE)?;
        for _ in 0..2 {
            node.start_again()?;
            ensure!(sys::run("ip -o link show")?.contains("frunknown@"), "it is gone");
            ensure!(node.log().contains("deadbeef") && node.attachments()?.len() == 1);
            ensure!(node.metric("ferrule_registry_unknown_interfaces")? == 1.0);
            node.runtime()?.check(&a)?;
            node.kill_agent()?;
        }
        Ok(())
    })
    .unwrap();
}
