# Each line runs in a shell with `k` for the program. Output, errors and exit code must be the same for kubectl and orchctl; lines that begin with `:` prepare.
: k create serviceaccount default
: k apply -f $DIR/objects.yaml
: k patch quota quota --subresource=status --type=merge -p '{"status":{"hard":{"pods":"10","requests.cpu":"4"},"used":{"pods":"3"}}}'
: k patch hpa scaler --subresource=status --type=merge -p '{"status":{"currentReplicas":2,"desiredReplicas":3,"conditions":[{"type":"AbleToScale","status":"True","reason":"R","message":"m n"}],"currentMetrics":[{"type":"Resource","resource":{"name":"cpu","current":{"averageUtilization":40,"averageValue":"40m"}}}]}}'
: k patch pdb budget --subresource=status --type=merge -p '{"status":{"disruptionsAllowed":1,"currentHealthy":2,"desiredHealthy":1,"expectedPods":2}}'
: k patch pvc data --subresource=status --type=merge -p '{"status":{"phase":"Bound","accessModes":["ReadWriteOnce"],"capacity":{"storage":"2Gi"},"conditions":[{"type":"Resizing","status":"True","reason":"R","message":"m","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}'
: k patch cj nightly --subresource=status --type=merge -p '{"status":{"lastScheduleTime":"2026-01-01T03:00:00Z","active":[{"kind":"Job","name":"j1","namespace":"default"},{"kind":"Job","name":"j2","namespace":"default"}]}}'
: k certificate approve req
# tables
k get all
k get pods -A
k get pods -o wide
k get deploy,rs,svc -o wide
k get po,svc,nodes
k get pods --show-labels -L app,zz
k get pods --no-headers
k get pods --show-kind
k get pod/p1 svc/web
k get ns,pods -A
k get pods p1 nothing
k get pods nothing --ignore-not-found
k get pods -n none
k get nodes -l a=b
k get everything
k get svc --sort-by=.metadata.name
k get deployments.v1.apps api
k get deploy api --subresource=scale
k get pods --server-print=false
k get pods --field-selector=foo=x
k get pods -l 'a in ('
k get pods p1 -l a=b
k get pods p1 -A
k get -f $DIR/objects.yaml
k get -f $DIR/none.yaml
timeout 20 sh -c '"$PROGRAM" --kubeconfig="$CONFIG" get pods -w --request-timeout=5s'
# objects
k get pods p1 -o json
k get pods -o yaml
k get deploy,svc -o name
k get pods p1 -o yaml --show-managed-fields
k get pods nothing -o yaml
k get pods -o jsonpath='{range .items[*]}{.metadata.name}{"\t"}{.spec.containers[*].image}{"\n"}{end}'
k get cm -o jsonpath='{.items[?(@.metadata.name=="settings")].data}'
k get cm settings -o jsonpath='{.data.color}{"\n"}{.data.none}{.metadata.labels.app}'
k get pods -o jsonpath='{.items[0].spec.containers[-1].name} {.items[0].spec.containers[0:2].name}'
k get pods -o jsonpath="{.items[*]['metadata.name','status.phase']}"
k get cm settings -o jsonpath='{.data'
k get cm settings -o jsonpath
k get pods -o custom-columns=NAME:.metadata.name,L:.metadata.labels,C:.spec.containers[*].name,N:.nothing
k get pods -o custom-columns=NAME
k get svc --sort-by=.spec.clusterIP -o name
k get --raw /version
k get --raw /nothing
# what the server serves
k api-versions
k api-resources
k api-resources -o wide
k api-resources --namespaced=false --no-headers
k api-resources --api-group=apps --verbs=list -o name
k explain pod
k explain deployment.spec.replicas
k explain pod.spec.containers --recursive
k explain pod.spec.nodeSelector
# descriptions
k describe pod p1
k describe node n1
k describe svc web
k describe deploy api
k describe ds ds
k describe rs rs
k describe job job1
# kubectl prints the keys in any order.
k describe cm settings | sort
k describe secret login | sort
k describe role r1
k describe clusterrole cr1
k describe rolebinding rb1
k describe sa default
k describe ns default
k describe event ev1
k describe endpoints kubernetes
k describe pvc data
k describe pvc unbound
k describe pv vol
k describe pv remote
k describe pv served
k describe pv disk
k describe sc
k describe ing
k describe ep web
k describe endpointslice web-1
k describe endpointslice web-2
k describe hpa scaler
k describe cj
k describe pdb
k describe quota
k describe limits
k describe netpol
k describe csr req
k describe pod nothing
# who may what
k auth can-i --list
k auth can-i get pods --as=bob
k auth can-i get nodes
k auth can-i get foo
k auth can-i get /healthz
k auth can-i get pods --subresource=log -q
# what happens
k events
k events -n none
k events --for=pod/p1
k top nodes
k wait --for=condition=Ready pod/p1 --timeout=1s
k wait --for=jsonpath='{.status.phase}'=Pending pod --all --timeout=2s
k wait --for=delete pod/nothing --timeout=1s
k wait --for=condition=Ready pods -l a=b --timeout=1s
k logs p1 -c nothing
k logs nothing
# the configuration
k config view
k config current-context
k config get-contexts
k config get-contexts zz
k config set-context extra --cluster=kubernetes --user=kubernetes-admin --namespace=x
k config set-context --current --namespace=default
k config use-context extra
k config use-context none
k config get-contexts
k config rename-context extra other
k config rename-context extra other
k config set-cluster c2 --server=https://h:1
k config set-credentials u2 --token=t
k config set contexts.other.namespace y
k config unset users.u2
k config view
k config get-clusters | sort
k config get-users | sort
k config delete-context other
k config delete-context other
k config delete-cluster c2
k config delete-user u2
k config current-context
k --context=none get pods
