# Each line runs in a shell with `k` for the program. Output and exit code must be the same for kubectl and orchctl; lines that begin with `:` are not compared.
: k create serviceaccount default
# create
k create namespace shop
k create namespace shop
k create deployment web --image=nginx:1.25 --replicas=3 --port=80
k create deployment web --image=nginx
k create deployment two --image=a/nginx --image=busybox:1 --dry-run=client -o yaml
k create deployment cmd --image=busybox --dry-run=client -o json -- sleep 5
k create deployment --image=x
k create configmap c --from-literal=a=b --from-literal=c=d
k create configmap f --from-file=$DIR/data --from-file=renamed=$DIR/one.txt --dry-run=client -o yaml
k create configmap e --from-env-file=$DIR/vars.env -o yaml --dry-run=client
MODE=fast k create configmap e --from-env-file=$DIR/names.env -o yaml --dry-run=client
k create configmap e --from-env-file=$DIR/number.env --dry-run=client 2>&1
k create configmap e --from-env-file=$DIR/spaces.env --dry-run=client 2>&1
k create configmap e --from-env-file=$DIR/above.env --dry-run=client 2>&1
k create secret generic s --from-literal=user=me
k create secret docker-registry r --docker-username=u --docker-password=p --docker-email=e -o json --dry-run=client
k create serviceaccount robot
k create job once --image=busybox -- date
k create job once --image=busybox --dry-run=client -o yaml -- date
k create cronjob nightly --image=busybox --schedule='0 1 * * *' -- date
k create job manual --from=cronjob/nightly
k create job other --from=deploy/web
k create quota q --hard=pods=5,services=3
k create quota scoped --hard=pods=2 --scopes=BestEffort --dry-run=client -o yaml
k create priorityclass high --value=5 --description=x
k create poddisruptionbudget none --selector=app=web
k create poddisruptionbudget budget --selector=app=web --min-available=1
k create service clusterip svc --tcp=80:8080
k create service nodeport np --tcp=80 --dry-run=client -o yaml
k create service externalname ext --external-name=a.b --dry-run=client -o yaml
k create ingress i --rule='foo.com/bar*=svc1:8080,tls=secret' --class=c
k create role r --verb=get,list --resource=pods,deployments.apps,pods/log
k create role r2 --verb=get --resource=pods,deploy -o yaml --dry-run=client
k create clusterrole cr --verb=get --non-resource-url=/healthz --dry-run=client -o yaml
k create rolebinding rb --clusterrole=admin --user=u --serviceaccount=n:s --group=g
k create clusterrolebinding crb --clusterrole=admin --user=u
k create -f $DIR/pod.yaml
k create -f $DIR/pod.yaml
k create -f $DIR/unknown.yaml
k create -f $DIR/unknown.yaml --validate=ignore
k create -f $DIR/missing.yaml
k create -f $DIR/pod.yaml --dry-run=server -n shop
k create -f $DIR/pod.yaml --dry-run=client -o name
# apply
k apply -f $DIR/app.yaml
k apply -f $DIR/app.yaml
sed s/nginx:1/nginx:2/ $DIR/app.yaml | k apply -f -
sed s/nginx:1/nginx:2/ $DIR/app.yaml | k apply -f - --dry-run=server
sed s/nginx:1/nginx:3/ $DIR/app.yaml | k apply -f - --dry-run=client
k apply view-last-applied cm/settings
k apply view-last-applied cm/settings -o json
k apply view-last-applied cm/c
k patch cm settings --type=merge -p '{"data":{"theirs":"1","mode":"changed"}}'
sed /extra/d $DIR/app.yaml | k apply -f - -l kind=config
k get cm settings -o jsonpath='{.data}'
k get deploy app -o jsonpath='{.spec.template.spec.containers[*].image}'
k patch deploy app -p '{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"sidecar"}]}}}}'
k apply -f $DIR/app.yaml
k get deploy app -o jsonpath='{range .spec.template.spec.containers[*]}{.name}={.image} {end}'
k apply -f $DIR/app.yaml --prune -l part=app
k apply -f $DIR/app.yaml --prune
sed '/^---/q' $DIR/app.yaml | k apply -f - --prune -l kind --prune-allowlist=apps/v1/Deployment --dry-run=client
k apply -f $DIR/generate.yaml
k apply -f $DIR/app.yaml --server-side
k apply -f $DIR/app.yaml --server-side --force-conflicts
k apply -f $DIR/app.yaml --force-conflicts
k apply
k apply --server-side -f $DIR/ssa.yaml
# patch
k patch deploy web -p '{"spec":{"replicas":2}}'
k patch deploy web -p '{"spec":{"replicas":2}}'
k patch deploy/web --type=json -p '[{"op":"replace","path":"/spec/replicas","value":4}]'
k patch deploy web --type=json -p '[{"op":"test","path":"/spec/replicas","value":5}]'
k patch deploy web --subresource=status --type=merge -p '{"status":{"replicas":4}}'
k patch deploy web --subresource=scale --type=merge -p '{"spec":{"replicas":1}}'
k patch deploy nobody -p '{}'
k patch deploy web -p '{bad'
k patch cm missing c absent --type=merge -p '{"data":{"several":"1"}}' 2>&1
{ cat $DIR/new.yaml; echo ---; sed s/newer/c/ $DIR/new.yaml; } | k patch -f - --type=merge -p '{"data":{"several":"2"}}' 2>&1
cat $DIR/pod.yaml $DIR/new.yaml | sed 's/^apiVersion/---\napiVersion/' | k patch -f - --local --type=json -p '[{"op":"test","path":"/kind","value":"ConfigMap"}]' -o name
# label and annotate
k label pod single tier=back
k label pod single tier=back
k label pod single tier=front
k label pod single tier=front --overwrite
k label pod single tier-
k label pod single none-
k label pod single a=b c=d e-
k label pod single --list | sort
k label pods --all x=y
k label pods -l x=y z=1 --dry-run=client
k label pod single a=b a-
k label pod single
k label pod single 'bad key=1'
k annotate pod single note='a b'
k annotate pod single note=other
k annotate pod single note=other --overwrite -o name
k annotate pod single note-
k annotate deploy/web cm/c who=me
# scale and autoscale
k scale deploy web --replicas=3
k scale deploy web --replicas=2 --current-replicas=9
k scale deploy web --replicas=2 --current-replicas=3
k scale deploy web
k scale --replicas=1 deploy/web deploy/app
k scale cm c --replicas=1
k scale --replicas=1 deploy/missing deploy/web deploy/absent deploy/app 2>&1
k scale --replicas=3 deploy/web deploy/app --current-replicas=1 --dry-run=server
k scale --replicas=1 deploy/web deploy/app --resource-version=1
k autoscale deploy web --min=2 --max=5 --cpu-percent=80
k autoscale deploy web --min=6 --max=5
# set
k set image deploy/web nginx=nginx:9
k set image deploy/web nginx=nginx:9
k set image deploy/web nobody=x
k set image deploy/web deploy/none nginx=x
k get deploy web -o jsonpath='{.spec.template.spec.containers[*].image}'
k set image deploy/app '*=all'
k get deploy app -o jsonpath='{.spec.template.spec.containers[*].image}'
k set env deploy/web A=1 B=2
k set env deploy/web A-
k set env deploy/web --from=cm/c --keys=a --prefix=P_
k get deploy web -o jsonpath='{.spec.template.spec.containers[0].env}'
k set resources deploy web --limits=cpu=200m,memory=512Mi --requests=cpu=100m
k get deploy web -o jsonpath='{.spec.template.spec.containers[0].resources}'
k set resources deploy web
k set serviceaccount deploy web robot
k set selector service svc app=other
# expose and run
k expose deploy web --port=80 --target-port=8080 --name=front
k expose deploy web --port=80 --target-port=8080 --name=front
k expose deploy app --name=noport
k expose cm c --port=1
k expose pod single --port=53 --protocol=UDP --type=NodePort --name=dns
k get svc front -o jsonpath='{.spec.ports}{.spec.selector}'
k run p1 --image=nginx
k run p2 --image=nginx --port=80 --env=A=B --labels=x=y --restart=Never --expose -- a b
k run p3 --image=nginx --dry-run=client -o yaml --command -- a b
k run p4
k run p5 --image=nginx --rm
# rollout
k rollout pause deploy web
k rollout pause deploy web
k rollout restart deploy web
k rollout resume deploy web
k rollout resume deploy web
k rollout restart deploy web
k rollout restart cm c
k rollout pause deploy/missing deploy/web deploy/app
k rollout pause deploy/web deploy/app deploy/absent
k rollout history deploy/missing deploy/web deploy/app 2>&1
k rollout undo deploy/web deploy/app
k rollout status deploy/missing deploy/web --watch=false
k rollout resume deploy/web deploy/app deploy/absent 2>&1
k rollout history deploy web
k rollout undo deploy web
k rollout status deploy web --watch=false
k patch deploy web --subresource=status --type=merge -p '{"status":{"observedGeneration":100,"replicas":1,"updatedReplicas":1,"readyReplicas":1,"availableReplicas":1}}'
k rollout status deploy web
k rollout status deploy web --timeout=1s --revision=7
# nodes
k create -f $DIR/node.yaml
k cordon n1
k cordon n1
k uncordon n1
k uncordon n1 --dry-run=client
k taint node n1 a=b:NoSchedule
k taint node n1 a=c:NoSchedule
k taint node n1 a=c:NoSchedule --overwrite
k taint node n1 a:NoSchedule-
k taint node n1 a-
k taint node n1 a=b:Sometimes
k taint nodes --all z=1:NoExecute
k taint nodes missing n1 absent several=1:NoSchedule 2>&1
k taint nodes missing n1 several=2:NoSchedule
k taint node/n1 pod/single several=3:NoSchedule --overwrite
k drain n1
k drain n1 --force --ignore-daemonsets --grace-period=0 --disable-eviction --delete-emptydir-data --dry-run=client | sort
k drain n1 --force --ignore-daemonsets --delete-emptydir-data --grace-period=0 | sort
k get pods -o name --field-selector=spec.nodeName=n1
k drain nobody
# diff
k diff -f $DIR/new.yaml > $DIR/diff.txt
grep -c '^+' $DIR/diff.txt
k diff -f $DIR/app.yaml -l kind=config
k diff -f $DIR/missing.yaml
# records
: k create configmap applied --from-literal=a=first
k apply set-last-applied -f $DIR/applied.yaml
k apply set-last-applied -f $DIR/applied.yaml --create-annotation --dry-run=client
k apply set-last-applied -f $DIR/applied.yaml --create-annotation
k apply set-last-applied -f $DIR/applied.yaml
k apply view-last-applied cm/applied
KUBE_EDITOR='sed -i s/first/second/' k apply edit-last-applied cm/applied
k apply view-last-applied cm/applied
KUBE_EDITOR=true k apply edit-last-applied cm/applied
k apply edit-last-applied cm/c
# edit
KUBE_EDITOR='sed -i s/fast/slow/' k edit cm settings
k get cm settings -o jsonpath='{.data.mode}'
KUBE_EDITOR=true k edit cm settings
KUBE_EDITOR=false k edit cm settings
# replace
k replace -f $DIR/app.yaml
k replace -f $DIR/new.yaml
cat $DIR/new.yaml $DIR/app.yaml | sed 's/^apiVersion/---\napiVersion/' | k replace -f -
cat $DIR/app.yaml $DIR/new.yaml | sed 's/^apiVersion/---\napiVersion/; s/^kind: Deployment/kind: Unknown/' | k replace -f -
k replace --force -f $DIR/app.yaml -l x
k replace --force -f $DIR/pod.yaml
k replace
# certificates
k create -f $DIR/csr.yaml
k certificate approve one
k get csr one -o jsonpath='{.status.conditions[*].type} {.status.conditions[*].reason}'
k certificate deny two
k certificate approve nobody
# delete
k delete deploy web
k delete deploy web
k delete deploy web --ignore-not-found
k delete cm c --dry-run=client
k delete cm c --dry-run=server
k delete cm c -o name
k delete -f $DIR/app.yaml --wait=false
k delete pods -l x=y --grace-period=0 --force
k delete pods --all --now
k delete pods --all
k delete pods
k delete deploy,svc -l app=nobody
k delete all --all --wait=false
k delete deploy/app svc/front
k delete secret s --cascade=orphan --wait=false
k delete cm a -l x=y
k delete nonsense x
# reconciled access
k auth reconcile -f $DIR/roles.yaml --dry-run=client 2>&1
k auth reconcile -f $DIR/roles.yaml 2>&1
k auth reconcile -f $DIR/roles.yaml 2>&1
k get namespace teams -o name
k get cm no-role
k auth reconcile -f $DIR/other-roles.yaml --dry-run=server 2>&1
k auth reconcile -f $DIR/other-roles.yaml 2>&1
k get role reader -n teams -o jsonpath='{.rules}{.metadata.labels}'
k get rolebinding readers -n teams -o jsonpath='{.subjects}'
k auth reconcile -f $DIR/other-roles.yaml --remove-extra-permissions --remove-extra-subjects --dry-run=client 2>&1
k auth reconcile -f $DIR/other-roles.yaml --remove-extra-permissions --remove-extra-subjects -o name 2>&1
k get role reader -n teams -o jsonpath='{.rules}'
k get rolebinding readers -n teams -o jsonpath='{.subjects}'
sed 's/name: scraper}/name: cluster-admin}/' $DIR/roles.yaml | k auth reconcile -f - 2>&1
k get clusterrolebinding scrapers -o jsonpath='{.roleRef.name}{.subjects}'
: k annotate clusterrole scraper rbac.authorization.kubernetes.io/autoupdate=false
sed 's/verbs: \[get\]/verbs: [post]/' $DIR/roles.yaml | k auth reconcile -f - 2>&1
k get clusterrole scraper -o jsonpath='{.rules}'
k auth reconcile -f $DIR/roles.yaml -n other
k auth reconcile
# recorded commands
: k create configmap recorded --from-literal=a=b
k label cm recorded x=y --record
k get cm recorded -o jsonpath='{.metadata.annotations}' | grep -o 'record=true'
: k annotate cm recorded kubernetes.io/change-cause-
k annotate cm recorded a=b --record
k get cm recorded -o jsonpath='{.metadata.annotations}' | grep -o 'record=true'
k annotate cm recorded kubernetes.io/change-cause=mine --overwrite --record
k get cm recorded -o jsonpath='{.metadata.annotations.kubernetes\.io/change-cause}'
: k annotate cm recorded kubernetes.io/change-cause-
k patch cm recorded --type=merge -p '{"data":{"a":"c"}}' --record
k get cm recorded -o jsonpath='{.metadata.annotations}{.data}' | grep -o 'record=true\|"a":"c"'
: k annotate cm recorded kubernetes.io/change-cause-
KUBE_EDITOR='sed -i s/a:\ c/a:\ d/' k edit cm recorded --record
k get cm recorded -o jsonpath='{.metadata.annotations}{.data}' | grep -o 'record=true\|"a":"d"'
k create -f $DIR/single-recorded.yaml --save-config --record
k get pod single-recorded -o jsonpath='{.metadata.annotations}' | grep -o 'record=true'
k apply -f $DIR/single-recorded.yaml
k get pod single-recorded -o jsonpath='{.metadata.annotations}' | grep -o 'record=true'
k expose pod single-recorded --port=80 --record --name=recorded
k get service recorded -o jsonpath='{.metadata.annotations}' | grep -o 'record=true'
k run recorded --image=i --record
k get pod recorded -o jsonpath='{.metadata.annotations}' | grep -o 'record=true'
: k create deployment app --image=i
k autoscale deploy app --min=1 --max=2 --name=recorded --record
k get hpa recorded -o jsonpath='{.metadata.annotations}' | grep -o 'record=true'
