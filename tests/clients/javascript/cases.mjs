// Cases of `@kubernetes/client-node`. One line a case: its name, ok or failed, and the reason, between tabs.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { PassThrough, Readable, Writable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';

import * as k8s from '@kubernetes/client-node';

const { NAMESPACE: namespace, IMAGE: image, DEFINITION: definition, SCRATCH: scratch } = process.env;
const SECONDS = 30;
const GROUP = { group: 'people.example', version: 'v1', plural: 'crontabs' };

const config = new k8s.KubeConfig();
config.loadFromDefault();
const core = config.makeApiClient(k8s.CoreV1Api);
const apps = config.makeApiClient(k8s.AppsV1Api);
const batch = config.makeApiClient(k8s.BatchV1Api);
const custom = config.makeApiClient(k8s.CustomObjectsApi);
const objects = k8s.KubernetesObjectApi.makeApiClient(config);

const MERGE = k8s.setHeaderOptions('Content-Type', k8s.PatchStrategy.MergePatch);
const STRATEGIC = k8s.setHeaderOptions('Content-Type', k8s.PatchStrategy.StrategicMergePatch);
const APPLY = k8s.setHeaderOptions('Content-Type', k8s.PatchStrategy.ServerSideApply);

async function wait(what, test) {
  const end = Date.now() + SECONDS * 1000;
  for (;;) {
    const value = await test();
    if (value) return value;
    assert(Date.now() < end, `${what} did not come in ${SECONDS} s`);
    await sleep(100);
  }
}

/** What the server says when it refuses the call; the case fails if it takes it, or refuses it for another reason. */
async function refused(code, reason, call) {
  try {
    await call();
  } catch (error) {
    const status = typeof error.body === 'string' ? JSON.parse(error.body) : error.body;
    assert.deepEqual([error.code, status?.reason], [code, reason], String(error));
    return status;
  }
  throw new Error('the call was not refused');
}

const configMap = (name, data) => ({ apiVersion: 'v1', kind: 'ConfigMap', metadata: { name, namespace, labels: { of: 'node' } }, data });

const pod = (name, ...command) => ({
  metadata: { name, labels: { of: 'node' } },
  spec: { restartPolicy: 'Never', terminationGracePeriodSeconds: 1, containers: [{ name: 'c', image, command }] },
});

function collector() {
  const parts = [];
  const stream = new Writable({ write: (part, _, done) => (parts.push(part), done()) });
  stream.text = () => Buffer.concat(parts).toString();
  return stream;
}

/** Runs a command in a pod to its end; what it wrote. */
async function run(name, ...command) {
  const [out, error] = [collector(), collector()];
  await new Promise((resolve) => new k8s.Exec(config).exec(namespace, name, 'c', command, out, error, null, false, resolve));
  return out.text();
}

const cases = {
  async version() {
    const info = await config.makeApiClient(k8s.VersionApi).getCode();
    assert.equal(info.major, '1');
    assert.match(info.minor, /^25/);
  },

  async 'groups-and-resources'() {
    const groups = (await config.makeApiClient(k8s.ApisApi).getAPIVersions()).groups.map((group) => group.name);
    assert(groups.includes('apps') && groups.includes('rbac.authorization.k8s.io'));
    assert((await apps.getAPIResources()).resources.some((resource) => resource.name === 'deployments/scale'));
  },

  /** Each list method without arguments, of each group that is served. */
  async 'every-kind-is-listed'() {
    let count = 0;
    for (const name of Object.keys(k8s).filter((name) => name.endsWith('Api') && /V\d+Api$/.test(name))) {
      const api = config.makeApiClient(k8s[name]);
      if (!(await api.getAPIResources().catch(() => null))) continue;
      for (const method of Object.getOwnPropertyNames(Object.getPrototypeOf(api))) {
        if (!method.startsWith('list') || method.startsWith('listNamespaced') || method.endsWith('WithHttpInfo')) continue;
        try {
          const listed = await api[method]({});
          // Statuses of components are made when they are asked for.
          assert(listed.metadata.resourceVersion || method === 'listComponentStatus', method);
          count += 1;
        } catch (error) {
          assert.equal(error.code, 404, `${name}.${method}: ${error}`);
        }
      }
    }
    assert(count > 45, `${count}`);
  },

  async 'create-read-list'() {
    const made = await core.createNamespacedConfigMap({ namespace, body: configMap('a', { k: 'v' }), fieldManager: 'node' });
    assert(made.metadata.creationTimestamp instanceof Date);
    assert.equal(made.metadata.managedFields[0].manager, 'node');
    assert.deepEqual((await core.readNamespacedConfigMap({ name: 'a', namespace })).data, { k: 'v' });
    const names = async (selector) => (await core.listNamespacedConfigMap({ namespace, ...selector })).items.map((o) => o.metadata.name);
    assert.deepEqual(await names({ labelSelector: 'of=node' }), ['a']);
    assert.deepEqual(await names({ fieldSelector: 'metadata.name=a' }), ['a']);
  },

  async 'list-in-chunks'() {
    for (let number = 0; number < 5; number += 1) await core.createNamespacedConfigMap({ namespace, body: configMap(`chunk-${number}`) });
    const names = [];
    let token;
    do {
      const page = await core.listNamespacedConfigMap({ namespace, limit: 2, _continue: token });
      names.push(...page.items.map((o) => o.metadata.name));
      token = page.metadata._continue;
    } while (token);
    assert.equal(names.filter((name) => name.startsWith('chunk-')).length, 5, `${names}`);
  },

  async 'replace-and-conflict'() {
    const old = await core.readNamespacedConfigMap({ name: 'a', namespace });
    const body = structuredClone({ ...old, data: { k: 'w' } });
    body.metadata = { ...old.metadata };
    await core.replaceNamespacedConfigMap({ name: 'a', namespace, body });
    await refused(409, 'Conflict', () => core.replaceNamespacedConfigMap({ name: 'a', namespace, body: old }));
  },

  async 'patch-json'() {
    const body = [{ op: 'test', path: '/data/k', value: 'w' }, { op: 'add', path: '/data/j', value: '1' }];
    const patched = await core.patchNamespacedConfigMap({ name: 'a', namespace, body });
    assert.deepEqual(patched.data, { k: 'w', j: '1' });
    body[0].value = 'other';
    await refused(422, 'Invalid', () => core.patchNamespacedConfigMap({ name: 'a', namespace, body }));
  },

  async 'patch-merge'() {
    const patched = await core.patchNamespacedConfigMap({ name: 'a', namespace, body: { data: { k: null, m: '2' } } }, MERGE);
    assert.deepEqual(patched.data, { j: '1', m: '2' });
  },

  async 'patch-strategic'() {
    await core.createNamespacedPod({ namespace, body: pod('patched', 'sleep', '1000') });
    const body = { spec: { containers: [{ name: 'c', image: `${image}-other` }] } };
    const patched = await core.patchNamespacedPod({ name: 'patched', namespace, body }, STRATEGIC);
    assert.deepEqual(patched.spec.containers[0].command, ['sleep', '1000']);
    await core.deleteNamespacedPod({ name: 'patched', namespace, gracePeriodSeconds: 0 });
  },

  async 'apply-and-conflict'() {
    const apply = (value, fieldManager, force) =>
      core.patchNamespacedConfigMap(
        { name: 'applied', namespace, fieldManager, force, body: { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'applied' }, data: { k: value } } },
        APPLY,
      );
    assert.deepEqual((await apply('v', 'one')).data, { k: 'v' });
    const status = await refused(409, 'Conflict', () => apply('w', 'two'));
    assert.equal(status.details.causes[0].field, '.data.k');
    assert.deepEqual((await apply('w', 'two', true)).metadata.managedFields.map((m) => m.manager), ['two']);
  },

  async 'dry-run-and-validation'() {
    await core.createNamespacedConfigMap({ namespace, body: configMap('dry'), dryRun: 'All' });
    await refused(404, 'NotFound', () => core.readNamespacedConfigMap({ name: 'dry', namespace }));
    const status = await refused(422, 'Invalid', () => core.createNamespacedConfigMap({ namespace, body: configMap('A_b') }));
    assert.equal(status.details.causes[0].field, 'metadata.name');
  },

  async watch() {
    const seen = [];
    let end;
    const done = new Promise((resolve) => (end = resolve));
    const place = `/api/v1/namespaces/${namespace}/configmaps`;
    const { resourceVersion } = (await core.listNamespacedConfigMap({ namespace })).metadata;
    const request = await new k8s.Watch(config).watch(place, { resourceVersion, allowWatchBookmarks: true }, (type, object) => seen.push([type, object.metadata.name]), end);
    await core.createNamespacedConfigMap({ namespace, body: configMap('seen', { k: 'v' }) });
    await core.patchNamespacedConfigMap({ name: 'seen', namespace, body: { data: { k: 'w' } } }, MERGE);
    await core.deleteNamespacedConfigMap({ name: 'seen', namespace });
    await wait('three events', () => seen.length === 3);
    assert.deepEqual(seen, [['ADDED', 'seen'], ['MODIFIED', 'seen'], ['DELETED', 'seen']]);
    request.abort();
    await done;
  },

  async 'watch-too-old'() {
    const seen = [];
    await new Promise((resolve) => new k8s.Watch(config).watch(`/api/v1/namespaces/${namespace}/configmaps`, { resourceVersion: '1', timeoutSeconds: 1 }, (type, object) => seen.push([type, object.code]), resolve));
    const isOld = seen.some(([type, code]) => type === 'ERROR' && code === 410);
    assert(isOld || seen.every(([type]) => type === 'ADDED' || type === 'MODIFIED' || type === 'DELETED'), JSON.stringify(seen));
  },

  async informer() {
    const seen = { add: [], update: [], delete: [] };
    const informer = k8s.makeInformer(config, `/api/v1/namespaces/${namespace}/configmaps`, () => core.listNamespacedConfigMap({ namespace, labelSelector: 'of=node' }), 'of=node');
    for (const verb of Object.keys(seen)) informer.on(verb, (object) => seen[verb].push(object.metadata.name));
    await informer.start();
    await wait('the list', () => seen.add.includes('a'));
    await core.createNamespacedConfigMap({ namespace, body: configMap('informed') });
    await wait('the object', () => informer.get('informed', namespace));
    await core.patchNamespacedConfigMap({ name: 'informed', namespace, body: { data: { k: 'w' } } }, MERGE);
    await wait('the change', () => seen.update.includes('informed'));
    await core.deleteNamespacedConfigMap({ name: 'informed', namespace });
    await wait('the end', () => seen.delete.includes('informed'));
    await informer.stop();
  },

  async 'deployment-and-scale'() {
    const labels = { app: 'node' };
    const { containers } = pod('t', 'sleep', '1000').spec;
    const spec = { replicas: 1, selector: { matchLabels: labels }, template: { metadata: { labels }, spec: { containers, terminationGracePeriodSeconds: 1 } } };
    await apps.createNamespacedDeployment({ namespace, body: { metadata: { name: 'd' }, spec } });
    const ready = async () => (await apps.readNamespacedDeploymentStatus({ name: 'd', namespace })).status.readyReplicas;
    await wait('one replica', async () => (await ready()) === 1);
    const scale = await apps.readNamespacedDeploymentScale({ name: 'd', namespace });
    assert.equal(scale.status.selector, 'app=node');
    scale.spec.replicas = 2;
    await apps.replaceNamespacedDeploymentScale({ name: 'd', namespace, body: scale });
    await wait('two replicas', async () => (await ready()) === 2);
  },

  async jobs() {
    await batch.createNamespacedJob({ namespace, body: { metadata: { name: 'j' }, spec: { template: { spec: pod('t', 'true').spec } } } });
    await wait('its end', async () => (await batch.readNamespacedJob({ name: 'j', namespace })).status.succeeded === 1);
  },

  async logs() {
    await core.createNamespacedPod({ namespace, body: pod('logs', 'sh', '-c', 'for i in 1 2 3; do echo line $i; done; sleep 1000') });
    await wait('the pod', async () => (await core.readNamespacedPod({ name: 'logs', namespace })).status.phase === 'Running');
    await wait('lines', async () => (await core.readNamespacedPodLog({ name: 'logs', namespace })).trim().split('\n').length === 3);
    const body = pod('ends', 'sh', '-c', 'sleep 2; for i in 1 2 3; do echo line $i; sleep 0.2; done');
    await core.createNamespacedPod({ namespace, body });
    await wait('the pod', async () => (await core.readNamespacedPod({ name: 'ends', namespace })).status.phase === 'Running');
    const text = collector();
    const ended = new Promise((resolve) => text.on('finish', resolve));
    await new k8s.Log(config).log(namespace, 'ends', 'c', text, { follow: true });
    await ended;
    assert.equal(text.text(), 'line 1\nline 2\nline 3\n');
  },

  async exec() {
    const [out, error] = [collector(), collector()];
    const input = new PassThrough();
    const status = new Promise((resolve) => {
      new k8s.Exec(config).exec(namespace, 'logs', 'c', ['sh', '-c', 'read x; echo out $x; echo err $x >&2; exit 7'], out, error, input, false, resolve);
    });
    input.write('data\n');
    const ended = await status;
    assert.deepEqual([out.text(), error.text()], ['out data\n', 'err data\n']);
    assert.deepEqual([ended.status, ended.reason, ended.details.causes[0].message], ['Failure', 'NonZeroExitCode', '7']);
  },

  async attach() {
    const body = pod('attached', 'cat');
    body.spec.containers[0].stdin = true;
    await core.createNamespacedPod({ namespace, body });
    await wait('the pod', async () => (await core.readNamespacedPod({ name: 'attached', namespace })).status.phase === 'Running');
    const [out, input] = [collector(), new PassThrough()];
    const socket = await new k8s.Attach(config).attach(namespace, 'attached', 'c', out, null, input, false);
    input.write('echoed\n');
    await wait('the echo', () => out.text() === 'echoed\n');
    socket.close();
  },

  async copy() {
    const [source, target] = [path.join(scratch, 'source'), path.join(scratch, 'target')];
    for (const directory of [source, target]) fs.mkdirSync(directory, { recursive: true });
    fs.writeFileSync(path.join(source, 'file'), 'x'.repeat(100_000));
    const cp = new k8s.Cp(config);
    const size = async () => (await run('logs', 'sh', '-c', 'ls -l /tmp/file || true')).split(/ +/)[4];
    await cp.cpToPod(namespace, 'logs', 'c', source, '/tmp');
    await wait('the file in the pod', async () => (await size()) === '100000');
    await cp.cpFromPod(namespace, 'logs', 'c', 'file', target, '/tmp');
    const copied = path.join(target, 'file');
    await wait('the file of the pod', () => fs.existsSync(copied) && fs.statSync(copied).size === 100_000);
  },

  async 'port-forward'() {
    const script = "while true; do printf 'HTTP/1.0 200 OK\\r\\n\\r\\nyes' | nc -l -p 8080; done";
    await core.createNamespacedPod({ namespace, body: pod('web', 'sh', '-c', script) });
    await wait('the pod', async () => (await core.readNamespacedPod({ name: 'web', namespace })).status.phase === 'Running');
    await sleep(500);
    const [out, error, input] = [collector(), collector(), new PassThrough()];
    const socket = await new k8s.PortForward(config).portForward(namespace, 'web', [8080], out, error, input);
    input.write('GET / HTTP/1.0\r\n\r\n');
    await wait('the answer', () => out.text().endsWith('yes'));
    assert.equal(error.text(), '');
    socket.close();
  },

  async 'evict-and-delete'() {
    await core.createNamespacedPodEviction({ name: 'web', namespace, body: { metadata: { name: 'web', namespace } } });
    await core.deleteNamespacedPod({ name: 'attached', namespace });
    await wait('their end', async () => {
      const names = (await core.listNamespacedPod({ namespace })).items.map((o) => o.metadata.name);
      return !names.includes('web') && !names.includes('attached');
    });
  },

  async 'tokens-and-access'() {
    const body = { spec: { audiences: [], expirationSeconds: 600 } };
    const { token } = (await core.createNamespacedServiceAccountToken({ name: 'default', namespace, body })).status;
    const limited = new k8s.KubeConfig();
    const cluster = config.getCurrentCluster();
    limited.loadFromClusterAndUser(cluster, { name: 'account', token });
    const review = await limited.makeApiClient(k8s.AuthorizationV1Api).createSelfSubjectAccessReview({ body: { spec: { resourceAttributes: { namespace, verb: 'list', resource: 'secrets' } } } });
    assert.equal(review.status.allowed, false);
    await refused(403, 'Forbidden', () => limited.makeApiClient(k8s.CoreV1Api).listNamespacedSecret({ namespace }));
  },

  async top() {
    const metrics = new k8s.Metrics(config);
    await wait('usage', async () => (await metrics.getNodeMetrics().catch(() => ({ items: [] }))).items[0]?.usage.cpu);
    const [node] = await k8s.topNodes(core, metrics);
    assert(Number(node.Memory.Capacity) > 0);
  },

  async health() {
    assert.equal(await new k8s.Health(config).readyz({}), true);
  },

  async 'objects-of-any-kind'() {
    const spec = configMap('any', { k: 'v' });
    await objects.create(spec);
    assert.equal((await objects.read(spec)).data.k, 'v');
    const patched = await objects.patch({ ...spec, data: { k: 'w' } }, undefined, undefined, 'any', undefined, k8s.PatchStrategy.MergePatch);
    assert.equal(patched.data.k, 'w');
    const applied = await objects.patch({ ...spec, data: { k: 'z' } }, undefined, undefined, 'any', true, k8s.PatchStrategy.ServerSideApply);
    assert.equal(applied.data.k, 'z');
    assert((await objects.list('v1', 'ConfigMap', namespace, undefined, undefined, undefined, undefined, 'of=node')).items.length > 5);
    await objects.delete(spec);
  },

  async define() {
    const [body] = k8s.loadAllYaml(fs.readFileSync(definition, 'utf8'));
    const extensions = config.makeApiClient(k8s.ApiextensionsV1Api);
    await extensions.createCustomResourceDefinition({ body });
    await wait('the definition', async () => {
      const { status } = await extensions.readCustomResourceDefinition({ name: body.metadata.name });
      return status?.conditions?.some((c) => c.type === 'Established' && c.status === 'True');
    });
  },

  async 'custom-objects'() {
    const place = { ...GROUP, namespace };
    const body = { apiVersion: 'people.example/v1', kind: 'CronTab', metadata: { name: 'c' }, spec: { cronSpec: '* 5' } };
    assert.equal((await custom.createNamespacedCustomObject({ ...place, body })).spec.replicas, 1);
    assert.equal((await custom.listNamespacedCustomObject(place)).items.length, 1);
    assert.equal((await custom.listCustomObjectForAllNamespaces({ ...GROUP, resourcePlural: GROUP.plural })).items.length, 1);
    const patch = { ...place, name: 'c' };
    assert.equal((await custom.patchNamespacedCustomObject({ ...patch, body: [{ op: 'replace', path: '/spec/replicas', value: 2 }] })).spec.replicas, 2);
    const merged = await custom.patchNamespacedCustomObject({ ...patch, body: { spec: { replicas: 3 } } }, MERGE);
    assert.equal(merged.spec.replicas, 3);
    const status = await refused(422, 'Invalid', () => custom.patchNamespacedCustomObject({ ...patch, body: { spec: { replicas: 5 } } }, MERGE));
    assert.match(status.message, /fewer than five/);
    await custom.patchNamespacedCustomObjectStatus({ ...patch, body: { status: { replicas: 3 } } }, MERGE);
    assert.equal((await custom.getNamespacedCustomObjectScale(patch)).status.replicas, 3);
    const applied = await custom.patchNamespacedCustomObject({ ...patch, fieldManager: 'node', force: true, body: { ...body, spec: { cronSpec: '* 6' } } }, APPLY);
    assert.equal(applied.spec.cronSpec, '* 6');
  },

  async 'custom-informer'() {
    const place = { ...GROUP, namespace };
    const changed = [];
    const informer = k8s.makeInformer(config, `/apis/people.example/v1/namespaces/${namespace}/crontabs`, () => custom.listNamespacedCustomObject(place));
    informer.on('change', (object) => changed.push(object.spec.replicas));
    await informer.start();
    await wait('the list', () => changed.length === 1);
    await custom.patchNamespacedCustomObject({ ...place, name: 'c', body: { spec: { replicas: 1 } } }, MERGE);
    await wait('the change', () => changed.at(-1) === 1);
    await informer.stop();
  },

  async 'custom-object-of-any-kind'() {
    const spec = { apiVersion: 'people.example/v1', kind: 'CronTab', metadata: { name: 'any', namespace }, spec: { cronSpec: '1' } };
    await objects.patch(spec, undefined, undefined, 'node', true, k8s.PatchStrategy.ServerSideApply);
    assert.equal((await objects.read(spec)).spec.replicas, 1);
    await objects.delete(spec, undefined, undefined, undefined, undefined, 'Foreground');
  },

  async 'delete-all'() {
    await core.deleteCollectionNamespacedConfigMap({ namespace, labelSelector: 'of=node' });
    assert.equal((await core.listNamespacedConfigMap({ namespace, labelSelector: 'of=node' })).items.length, 0);
    await apps.deleteNamespacedDeployment({ name: 'd', namespace, propagationPolicy: 'Foreground' });
    await wait('the end', async () => (await apps.listNamespacedDeployment({ namespace })).items.length === 0);
    await config.makeApiClient(k8s.ApiextensionsV1Api).deleteCustomResourceDefinition({ name: 'crontabs.people.example' });
  },
};

const limit = (name) => sleep(2 * SECONDS * 1000).then(() => { throw new Error(`${name} did not end`); });
const chosen = process.argv.slice(2);
for (const [name, steps] of Object.entries(cases)) {
  if (chosen.length > 0 && !chosen.includes(name)) continue;
  try {
    await Promise.race([steps(), limit(name)]);
    console.log(`${name}\tok\t`);
  } catch (error) {
    console.error(error);
    console.log(`${name}\tfailed\t${String(error.message ?? error).replace(/[\t\n]/g, ' ').slice(0, 300)}`);
  }
}
process.exit(0);
