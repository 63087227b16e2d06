module github.com/workflow-supervisor/supervisor/examples

go 1.26.0

require (
	github.com/stretchr/testify v1.12.1
	github.com/workflow-supervisor/supervisor v0.0.0
)

require (
	github.com/google/uuid v1.6.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace github.com/workflow-supervisor/supervisor => ../
